"""The dialect's routes, and the form of its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.ollama import embedding, generate, models, store
from gristmill.serve.ollama.lines import PREFIX, error_form
from gristmill.serve.ollama.request import GenerateFields, OllamaChatFields

Handler = Callable[[HttpRequest], Awaitable[Response]]

__all__ = ["DELETE", "GET", "POST", "PREFIX", "error_form"]

GET: tuple[tuple[str, Handler], ...] = (
    ("/", models.root),
    ("/api/version", models.version),
    ("/api/tags", models.tags),
    ("/api/ps", models.ps),
)
POST: tuple[tuple[str, Handler, type[BaseModel] | None], ...] = (
    ("/api/generate", generate.generate, GenerateFields),
    ("/api/chat", generate.chat, OllamaChatFields),
    ("/api/show", models.show, models.ModelFields),
    ("/api/pull", store.pull, store.PullFields),
    ("/api/embed", embedding.several, embedding.EmbedFields),
    ("/api/embeddings", embedding.one, embedding.EmbedFields),
    ("/api/create", store.making, None),
    ("/api/copy", store.making, None),
    ("/api/push", store.making, None),
    ("/api/blobs/{digest}", store.making, None),
)
DELETE: tuple[tuple[str, Handler], ...] = (("/api/delete", store.delete),)
