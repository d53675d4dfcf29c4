"""The outermost layer of every exchange: its id, its path, its date, its line in the log.

What is inside sees paths without ``--root-path``, and finds the id in ``log.request_id``.
"""

from __future__ import annotations

import time
import uuid
from email.utils import formatdate
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.options import Options
from gristmill.serve import log
from gristmill.serve.http_metrics import HttpMetrics

MAX_ID = 128
NO_ROUTE = "none"


def fit_id(given: bytes | None) -> str:
    """A client's ``X-Request-Id`` if it is fit for headers and logs, else a new one."""
    if given and len(given) <= MAX_ID and all(0x21 <= byte <= 0x7E for byte in given):
        return given.decode("ascii")
    return uuid.uuid4().hex


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


class Outside:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, options: Options, metrics: HttpMetrics) -> None:
        self.app = app
        self._prefix = options.root_path
        self._metrics = metrics
        self._log = options.log_access
        self._silent = frozenset(options.log_access_except)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the call on; counts and logs it when it is over, however it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._cut_prefix(scope)
        id_ = fit_id(header(scope, b"x-request-id"))
        log.request_id.set(id_)  # uvicorn runs each request in a task, so in a context, of its own
        address = scope.get("client")
        log.client.set(str(address[0]) if address else "")
        seen = _Seen()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_added(id_)]}
            else:
                seen.size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            self._over(scope, id_, seen)

    def _cut_prefix(self, scope: Scope) -> None:
        path: str = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            scope["path"] = path[len(self._prefix) :] or "/"

    def _over(self, scope: Scope, id_: str, seen: _Seen) -> None:
        seconds = time.monotonic() - seen.began
        status = seen.status or 499  # the client left before there was anything to say
        route = route_of(scope)
        self._metrics.count(route, scope, status, seconds, seen.size)
        expected = status < 400 or status == 503  # a probe of a server that loads is no news
        if not self._log or (expected and scope["path"] in self._silent):
            return
        client = scope.get("client")
        fields = {
            "client": f"{client[0]}:{client[1]}" if client else None,
            "ms": round(seconds * 1000, 1),
            "bytes": seen.size,
            "id": id_,
        }
        shown = route if route != NO_ROUTE else quote(scope["path"][:200])
        said = {"method": scope["method"], "route": shown, "status": status}
        log.access.info("%s %s %d", *said.values(), extra={"said": said, "fields": fields})


class _Seen:
    """What has gone to the client so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.status = 0
        self.size = 0


def _added(id_: str) -> list[tuple[bytes, bytes]]:
    # The date is made when a response is and not by a timer: uvicorn makes it ten times a
    # second, which keeps an idle process awake.
    return [
        (b"date", formatdate(usegmt=True).encode()),
        (b"x-request-id", id_.encode()),
    ]


def route_of(scope: Scope) -> str:
    """The route's template, as ``/v1/models/{model_id}``; "none" for what no route has."""
    route = scope.get("route")
    path: str | None = getattr(route, "path", None)
    return NO_ROUTE if path is None else path.replace(":path}", "}")
