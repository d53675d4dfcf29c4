"""``/apply-template`` and ``…/input_tokens``: a chat rendered, without an answer to it."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.chat_request import ChatFields, chat_input, parse_chat
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import read_object
from gristmill.serve.prompt import chat_tokens
from gristmill.serve.protocol import Tokenizer
from gristmill.serve.state import State


async def _fields(http: HttpRequest) -> ChatFields:
    state: State = http.app.state.gristmill
    state.open()
    return parse_chat(await read_object(http, state.options.max_body_bytes))


async def apply_template(http: HttpRequest) -> Response:
    """``{"prompt": text}``, fit to be sent to ``/completion``."""
    state: State = http.app.state.gristmill
    fields = await _fields(http)
    served, _ = await state.acquire(http, fields.model)
    if served.chat is None:
        raise RequestError("This model has no chat template.", "messages")
    prompt = await state.in_worker(served.chat, chat_input(fields, served.context))
    text = prompt.text or served.tokenizer.decode(prompt.ids)
    return JsonResponse({"prompt": text.removeprefix(start_text(served.tokenizer))})


def start_text(tokenizer: Tokenizer) -> str:
    """The token that every raw prompt gets at its start, written out; ``/completion`` adds it."""
    ids = tokenizer.encode("", add_special=True, parse_special=False)
    return tokenizer.decode(ids[:1])


async def input_tokens(http: HttpRequest) -> Response:
    """``{"input_tokens": n}`` of a body for ``/v1/chat/completions``."""
    return JsonResponse({"input_tokens": await chat_tokens(http, await _fields(http))})
