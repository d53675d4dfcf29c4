"""How many tokens a chat is, without an answer to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.serve.chat_request import ChatFields, chat_input, parse_chat
from gristmill.serve.protocol import Served
from gristmill.serve.state import State


def chat_ids(served: Served, body: Mapping[str, object]) -> tuple[int, ...]:
    """A chat in OpenAI's form rendered to ids, however many; slow. Raises RequestError."""
    if served.chat is None:
        raise RequestError("This model has no chat template.", "messages")
    chat = chat_input(parse_chat(dict(body)), served.context)
    return served.chat(replace(chat, most=None)).ids


async def chat_tokens(http: HttpRequest, fields: ChatFields) -> int:
    """The rendered prompt's length, however long it is. Raises like ``chat_job``."""
    state: State = http.app.state.gristmill
    served, _ = await state.acquire(http, fields.model)
    if served.chat is None:
        raise RequestError(
            "This model has no chat template; start the server with --chat-template."
        )
    chat = replace(chat_input(fields, served.context), most=None)
    return len((await state.in_worker(served.chat, chat)).ids)
