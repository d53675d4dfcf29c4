"""``/tokenize`` and ``/detokenize``: vLLM's bodies and llama-server's, told apart by their fields.

vLLM sends ``prompt`` or ``messages`` and is answered with ``count``, ``max_model_len``,
``tokens``, ``token_strs``. llama-server sends ``content`` and is answered with ``tokens``, as
ids or, with ``with_pieces``, as ``{id, piece}``. A detokenised text comes back under both
names, ``prompt`` and ``content``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.errors import JsonResponse, dumps
from gristmill.serve.fields import Fields, Flag, Short, Text, Whole
from gristmill.serve.limits import read_object
from gristmill.serve.mixed import mixed
from gristmill.serve.openai.logprobs import token_text
from gristmill.serve.prompt import chat_ids
from gristmill.serve.protocol import Served
from gristmill.serve.state import State

MAX_IDS = 4_000_000
_CHAT = (
    *("messages", "tools", "chat_template", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message"),
)
SLICE = 20_000
"""Entries of a list written in one go."""


class TokenizeFields(Fields):
    """The body, in any of the three forms."""

    model: Short | None = None
    prompt: Text | None = None
    content: Any = None
    messages: list[Any] | None = None
    tools: Annotated[list[Any], Field(default_factory=list)]
    chat_template: Any = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(default_factory=dict)]
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    add_special_tokens: Flag = True
    add_special: Flag = False
    parse_special: Flag = True
    return_token_strs: Flag = False
    with_pieces: Flag = False


class DetokenizeFields(Fields):
    """The body."""

    model: Short | None = None
    tokens: Annotated[list[Whole], Field(max_length=MAX_IDS)]


async def tokenize(http: HttpRequest) -> Response:
    """Text or a chat to ids."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    fields = TokenizeFields.parse(body)
    served, _ = await state.acquire(http, fields.model)

    def work(wanted: TokenizeFields) -> bytes:
        return _json(_tokenize(wanted, served))

    return Response(await state.in_worker(work, fields), media_type="application/json")


def _json(body: Mapping[str, object]) -> bytes:
    """The body as JSON. Millions of entries are written in slices, so that no single call
    holds the interpreter, and with it everybody's answers, for long."""
    parts: list[bytes] = []
    for key, value in body.items():
        name = dumps(key) + b":"
        if not isinstance(value, list):
            parts.append(name + dumps(value))
            continue
        entries: list[object] = value  # pyright: ignore[reportUnknownVariableType]
        slices = [dumps(entries[at : at + SLICE])[1:-1] for at in range(0, len(entries), SLICE)]
        parts.append(name + b"[" + b",".join(slices) + b"]")
    return b"{" + b",".join(parts) + b"}"


def _tokenize(fields: TokenizeFields, served: Served) -> dict[str, object]:
    tokenizer = served.tokenizer
    if fields.content is not None:
        ids = mixed(
            fields.content,
            tokenizer,
            add_special=fields.add_special,
            parse_special=fields.parse_special,
            param="content",
        )
        if not fields.with_pieces:
            return {"tokens": ids}
        return {"tokens": [{"id": id_, "piece": _piece(tokenizer.piece(id_))} for id_ in ids]}
    if fields.messages is not None:
        ids = list(chat_ids(served, {name: getattr(fields, name) for name in _CHAT}))
    elif fields.prompt is not None:
        ids = tokenizer.encode(
            fields.prompt, add_special=fields.add_special_tokens, parse_special=True
        )
    else:
        raise RequestError("One of 'prompt', 'messages' or 'content' is needed.", "prompt")
    strings = [token_text(tokenizer.piece(id_)) for id_ in ids]
    return {
        "count": len(ids),
        "max_model_len": served.context,
        "tokens": ids,
        "token_strs": strings if fields.return_token_strs else None,
    }


def _piece(piece: bytes) -> object:
    """llama-server's form: text, or a list of bytes that are not whole characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(http: HttpRequest) -> Response:
    """Ids to text, special tokens written out."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    # The checks are done aside, too: a long list takes its time.
    fields = await state.in_worker(DetokenizeFields.parse, body)
    served, _ = await state.acquire(http, fields.model)
    text = await state.in_worker(partial(_detokenize, served), fields)
    return JsonResponse({"prompt": text, "content": text})


def _detokenize(served: Served, fields: DetokenizeFields) -> str:
    vocab = served.tokenizer.vocab_size
    for token in fields.tokens:
        if not 0 <= token < vocab:
            raise RequestError(f"'tokens' must hold token ids from 0 to {vocab - 1}.", "tokens")
    return served.tokenizer.decode(fields.tokens)
