"""Reading a request's body within bounds: length, nesting, valid text, finite numbers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import NoReturn, cast

from starlette.requests import ClientDisconnect, Request

from gristmill.errors import RequestError
from gristmill.serve.errors import TimeoutRequestError, TooLargeError

MAX_DEPTH = 100
MAX_NODES = 2_000_000
MAX_FIELDS = 1000
MAX_DIGITS = 1000
IDLE_SECONDS = 60.0
"""Between two pieces of a body."""
TOTAL_SECONDS = 600.0
"""For all of it: a trickle does not hold a connection for ever."""
_DISCARD_SECONDS = 1.0
_BIG = 256 * 1024


async def read_object(request: Request, limit: int) -> dict[str, object]:
    """The JSON object a client sent, its length no more than ``limit`` bytes.

    The content type is not looked at: ``curl -d`` names a wrong one and is welcome.

    Raises: RequestError (400, 408, 413) for anything that is not a sane JSON object.
    """
    body = await read_body(request, limit)
    if len(body) > _BIG:
        return await asyncio.to_thread(parse_object, body)
    return parse_object(body)


async def read_body(request: Request, limit: int) -> bytes:
    """All bytes of the body, however it is framed; stops reading at ``limit``."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > limit:
        if "expect" not in request.headers:  # else the client has not begun to send
            await _discard(request)
        raise TooLargeError(_too_large(limit))
    parts: list[bytes] = []
    total = 0
    end = time.monotonic() + TOTAL_SECONDS
    while True:
        patience = min(IDLE_SECONDS, end - time.monotonic())
        try:
            message = await asyncio.wait_for(request.receive(), patience)
        except TimeoutError:
            raise TimeoutRequestError("The rest of the request's body did not come.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        total += len(part)
        if total > limit:
            await _discard(request)
            raise TooLargeError(_too_large(limit))
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _discard(request: Request) -> None:
    """Reads on for a moment: a connection closed on unread bytes is reset, and the client
    would see that instead of the answer."""
    end = time.monotonic() + _DISCARD_SECONDS
    try:
        while time.monotonic() < end:
            message = await asyncio.wait_for(request.receive(), _DISCARD_SECONDS / 4)
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return
    except TimeoutError:
        return


def _too_large(limit: int) -> str:
    return f"The request's body is longer than this server takes ({limit} bytes)."


def parse_object(body: bytes) -> dict[str, object]:
    """Bytes to a checked JSON object; see ``read_object``."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not valid UTF-8 (byte {error.start}).") from None
    if not text.strip():
        raise RequestError("The body is empty; a JSON object is needed.")
    try:
        value: object = json.loads(text, parse_constant=_constant, parse_int=_integer)
    except RecursionError:
        raise RequestError(_too_deep()) from None
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {str(error)[:200]}.") from None
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    found = cast("dict[str, object]", value)
    if len(found) > MAX_FIELDS:
        raise RequestError(f"The JSON object has more than {MAX_FIELDS} fields.")
    check_tree(found)
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it holds a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _too_deep() -> str:
    return f"The JSON is nested deeper than {MAX_DEPTH} levels."


def check_tree(root: object) -> None:
    """Refuses too deep a nesting, too many values, and text that is not valid Unicode."""
    level: list[object] = [root]
    nodes = 0
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(_too_deep())
        nodes += len(level)
        if nodes > MAX_NODES:
            raise RequestError(f"The JSON holds more than {MAX_NODES} values.")
        below: list[object] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, dict):
                for key in value:  # pyright: ignore[reportUnknownVariableType]
                    _check_text(key)  # pyright: ignore[reportUnknownArgumentType]
                below.extend(value.values())  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(value, list):
                below.extend(value)  # pyright: ignore[reportUnknownArgumentType]
        level = below


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        unit = ord(text[error.start])
        raise RequestError(
            f"The JSON holds half of a character (the lone surrogate U+{unit:04X})."
        ) from None
