"""llama-server's own routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.chat_request import ChatFields
from gristmill.serve.embedding import EmbeddingFields
from gristmill.serve.llama import completion, embedding, infill, server, slots, template
from gristmill.serve.llama.request import CompletionBody

Handler = Callable[[HttpRequest], Awaitable[Response]]

GET: tuple[tuple[str, Handler], ...] = (
    ("/props", server.props),
    ("/slots", slots.show_slots),
    ("/lora-adapters", server.adapters),
)
POST: tuple[tuple[str, Handler, type[BaseModel] | None], ...] = (
    ("/completion", completion.completion, CompletionBody),
    ("/completions", completion.completion, CompletionBody),
    ("/infill", infill.infill, infill.InfillFields),
    ("/apply-template", template.apply_template, ChatFields),
    ("/chat/completions/input_tokens", template.input_tokens, ChatFields),
    ("/v1/chat/completions/input_tokens", template.input_tokens, ChatFields),
    ("/slots/{id_slot}", slots.change_slot, slots.SlotFields),
    ("/props", server.change_props, None),
    ("/lora-adapters", server.change_adapters, None),
    ("/embedding", embedding.embedding, EmbeddingFields),
    ("/embeddings", embedding.embedding, EmbeddingFields),
)
