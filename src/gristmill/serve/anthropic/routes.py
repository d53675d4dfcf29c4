"""``POST /v1/messages`` and ``/v1/messages/count_tokens``.

``anthropic-version``, ``anthropic-beta`` and ``?beta=true`` are not needed and not looked at.
"""

from __future__ import annotations

import uuid

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.anthropic.events import AnthropicEvents
from gristmill.serve.anthropic.request import (
    NAMES,
    Asked,
    CountFields,
    MessagesFields,
    parse_messages,
)
from gristmill.serve.anthropic.shape import MessageShape
from gristmill.serve.chat_request import chat_job
from gristmill.serve.dialect import blocks_apart, renamed, translated
from gristmill.serve.errors import JsonResponse
from gristmill.serve.exchange import promise
from gristmill.serve.limits import read_object
from gristmill.serve.log import request_id
from gristmill.serve.prompt import chat_tokens
from gristmill.serve.run import reply
from gristmill.serve.state import State


async def _asked(http: HttpRequest, form: type[MessagesFields]) -> Asked:
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    blocks_apart(body, state.options)
    return await translated(http, lambda: parse_messages(body, form))


async def messages(http: HttpRequest) -> Response:
    """Answers a conversation with a message."""
    asked = await _asked(http, MessagesFields)
    with renamed(NAMES):
        if asked.chat.stream:
            promise(http, AnthropicEvents())
        job = await chat_job(http, asked.chat, f"msg_{uuid.uuid4().hex}")
        shape = MessageShape(job, asked)
        answer = await reply(http, job, shape.writer, shape.whole, shape.ending, AnthropicEvents())
    answer.headers["request-id"] = request_id.get()
    return answer


async def count_tokens(http: HttpRequest) -> Response:
    """How many tokens the same body would be to the model."""
    asked = await _asked(http, CountFields)
    with renamed(NAMES):
        return JsonResponse({"input_tokens": await chat_tokens(http, asked.chat)})
