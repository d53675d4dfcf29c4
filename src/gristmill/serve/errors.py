"""Errors as clients of every dialect expect them.

OpenAI's shape ``{"error": {code, message, type, param}}`` is everybody's, unless a dialect has
put its own into ``FORMS`` for the paths that are its.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.errors import ContextError, GristmillError, OverloadError, RequestError
from gristmill.serve.bridge import ClientGoneError

log = logging.getLogger("gristmill.serve")

Form = Callable[[Mapping[str, object]], object]
"""OpenAI's inner error object to what a dialect's clients expect."""
FORMS: dict[str, Form] = {}
"""Path prefix → form."""

_HTTP_KINDS = {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"}


class TooLargeError(RequestError):
    """The request's body is longer than ``Options.max_body_bytes``."""

    status = 413


class TimeoutRequestError(RequestError):
    """The client stopped sending in the middle of its body."""

    status = 408


class DeadlineError(GristmillError):
    """The answer took longer than ``Options.request_timeout`` or the request's ``timeout``."""

    status = 504
    kind = "timeout_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The answer was not complete after {seconds:g} s, the most it may take.")


def error_body(error: BaseException) -> dict[str, object]:
    """The JSON object for an error; nothing of an unexpected one but that it happened."""
    if not isinstance(error, GristmillError):
        return _body(500, "The server hit an unexpected error; its log says more.", "server_error")
    param = error.param if isinstance(error, RequestError) else None
    body = _body(error.status, str(error), error.kind, param)
    if isinstance(error, ContextError):
        inner = body["error"]
        assert isinstance(inner, dict)
        inner["n_prompt_tokens"] = error.prompt_tokens
        inner["n_ctx"] = error.context
    return body


def _body(code: int, message: str, kind: str, param: str | None = None) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "type": kind, "param": param}}


def fault_body(code: int, message: str) -> dict[str, object]:
    """The JSON object for what is wrong with a request that has no route."""
    return _body(code, message, "invalid_request_error")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# Ends of lines to Unicode, and so to some clients, which would cut an event in two there.
_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}


def dumps(value: object) -> bytes:
    """Compact UTF-8 JSON on one line, whoever splits it. Refuses NaN and infinities."""
    if isinstance(value, Encoded):
        return value
    data = _ENCODER.encode(value).encode()
    if not data.isascii():
        for end, escaped in _ENDS.items():
            data = data.replace(end, escaped)
    return data


class Encoded(bytes):
    """JSON that has been encoded already."""


class JsonResponse(Response):
    """A response with a JSON body."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encodes the body."""
        return dumps(content)


def shaped(body: dict[str, object], path: str) -> object:
    """An error body in the form of the path's dialect."""
    inner = body["error"]
    assert isinstance(inner, dict)
    for prefix, form in FORMS.items():
        if path.startswith(prefix):
            return form(inner)  # pyright: ignore[reportUnknownArgumentType]
    return body


def error_response(error: BaseException, path: str = "") -> JsonResponse:
    """The whole answer for an error that came before any other answer."""
    status = error.status if isinstance(error, GristmillError) else 500
    headers: dict[str, str] = {}
    if isinstance(error, OverloadError):
        headers["Retry-After"] = str(error.retry_after)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"
    return JsonResponse(shaped(error_body(error), path), status, headers)


def install(app: FastAPI) -> None:
    """Makes the app answer every error in the one shape."""

    async def typed(request: Request, error: Exception) -> Response:
        exchange = request.scope.get("gristmill.exchange")
        if exchange is not None:  # whose stream may have begun already (see exchange.py)
            exchange.error = error
        return error_response(error, request.url.path)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = _HTTP_KINDS.get(error.status_code, "invalid_request_error")
        message = "No such route." if error.status_code == 404 else str(error.detail)
        if error.status_code == 405:
            message = "This route does not take that method."
        body = shaped(_body(error.status_code, message, kind), request.url.path)
        return JsonResponse(body, error.status_code, error.headers)

    async def gone(request: Request, error: Exception) -> Response:
        del request, error
        return Response(status_code=499)  # for the log: nobody is left to read it

    app.add_exception_handler(ClientGoneError, gone)
    app.add_exception_handler(GristmillError, typed)
    app.add_exception_handler(HTTPException, http)


class Unexpected:
    """ASGI middleware: an exception nobody expected is logged and answered as a plain 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the call on; answers only if nothing was sent yet."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            return  # in the middle of its own request: nobody is left to answer
        except Exception as error:
            log.exception("unexpected error in %s", scope.get("path"))
            if begun or scope["type"] != "http":
                raise
            await error_response(error, str(scope.get("path", "")))(scope, receive, send)
