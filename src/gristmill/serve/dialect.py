"""What dialects with bodies of their own need to translate them into OpenAI's chat form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.options import Options

T = TypeVar("T")

_BIG = 256 * 1024
"""Bytes of a body that are translated in no time."""

# Fields of the chat route that would change the number or the form of its answers: a dialect
# that has no place for what they ask refuses them.
_CHAT_ONLY: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "echo": (False,),
    "stream_options": ({},),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "timings_per_token": (False,),
    "reasoning_format": ("auto", "deepseek", "none"),
    "include_reasoning": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


def ignored(name: str, param: str | None = None) -> RequestError:
    """The error for what cannot be honoured; ``param`` if the field at fault is not ``name``."""
    return RequestError(
        f"'{name}' is not supported by this server; it would have been ignored.", param or name
    )


def refuse(body: Mapping[str, object], names: Mapping[str, Sequence[object]], api: str) -> None:
    """Raises for a field of ``names`` that asks for something; the values that do not are listed.

    Null never does.
    """
    for name, harmless in names.items():
        value = body.get(name)
        if value is None or any(type(value) is type(each) and value == each for each in harmless):
            continue
        raise RequestError(
            f"'{name}' is not supported by this server on {api}; it would have been ignored.", name
        )


def refuse_chat_only(body: Mapping[str, object], api: str) -> None:
    """Raises for a field of /v1/chat/completions that ``api`` has no place for."""
    refuse(body, _CHAT_ONLY, api)


def blocks_apart(body: dict[str, object], options: Options) -> None:
    """A thought has a block of its own: the server's default of showing it in the text too
    is not for answers in blocks."""
    if options.reasoning_format == "deepseek-legacy":
        body.setdefault("reasoning_format", "auto")


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None]:
    """Errors about fields that were translated speak of what the client has sent."""
    try:
        yield
    except RequestError as error:
        name = error.param
        if name is None or name not in names:
            raise
        error.param = names[name]
        error.args = (str(error).replace(f"'{name}'", f"'{names[name]}'"), *error.args[1:])
        raise


async def translated(http: HttpRequest, work: Callable[[], T], large: bool = False) -> T:
    """What ``work`` makes of a request's body: off the event loop if the body is (or may be)
    long, or what else it reads is ``large``."""
    length = http.headers.get("content-length", "")
    if not large and length.isdigit() and len(length) < 10 and int(length) <= _BIG:
        return work()
    return await asyncio.to_thread(work)


def an_object(value: object, where: str) -> Mapping[str, object]:
    """``value``, if it is a JSON object."""
    if not isinstance(value, dict):
        raise RequestError(f"'{where}' must be an object.", where)
    return cast("Mapping[str, object]", value)


def maybe_object(value: object, where: str) -> Mapping[str, object]:
    """``value``, if it is a JSON object; an empty one for null."""
    return {} if value is None else an_object(value, where)


def a_list(value: object, where: str) -> Sequence[object]:
    """``value``, if it is a JSON array."""
    if not isinstance(value, list):
        raise RequestError(f"'{where}' must be a list.", where)
    return cast("Sequence[object]", value)


def a_text(fields: Mapping[str, object], name: str, where: str) -> str:
    """The text ``name`` of an object that must have it."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise RequestError(f"'{where}.{name}' must be a string.", where)
    return value


def kind(fields: Mapping[str, object], where: str) -> str:
    """The ``type`` of an object that must have one."""
    return a_text(fields, "type", where)[:60]
