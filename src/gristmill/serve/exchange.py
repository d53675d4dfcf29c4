"""One HTTP exchange: what it holds is given back when it is over, however it ends.

A route that acquires a model need not release it. The middleware here stands around every
request; what ``State.acquire`` leases in its name lasts until the last byte is sent, the client
has gone or the route has failed.

A stream whose model is still to be loaded may begin before its route has anything to say: the
route promises how it will be framed, and the wait sends signs of life. What the route sends
afterwards goes on from there, an error as a stream of the dialect tells one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.errors import OverloadError
from gristmill.serve.host import Entry
from gristmill.serve.stream import Framing

log = logging.getLogger("gristmill.serve")

KEY = "gristmill.exchange"


@dataclass
class Exchange:
    """What one exchange holds: the models it uses, and what gives each back."""

    held: dict[Entry, Callable[[], None]] = field(default_factory=dict[Entry, Callable[[], None]])
    promised: Framing | None = None
    """How the answer will be framed, if it is a stream."""
    begun: bool = False
    """Whether the stream was begun before its route had anything to say."""
    error: BaseException | None = None
    """What the route ended with instead of an answer."""
    send: Send | None = None

    def end(self) -> None:
        """Gives everything back."""
        held, self.held = self.held, {}
        for release in held.values():
            release()

    async def alive(self) -> None:
        """A sign of life while the model is loaded, if the dialect has a word for it."""
        framing, send = self.promised, self.send
        if framing is None or send is None:
            return
        data = framing.alive()
        if not data:
            return
        if not self.begun:
            self.begun = True
            kind = framing.media_type
            if kind.startswith("text/"):
                kind += "; charset=utf-8"
            headers = [
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                (b"content-type", kind.encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


def promise(http: Request, framing: Framing) -> None:
    """Says how this exchange's answer will be framed: it is a stream."""
    exchange = http.scope.get(KEY)
    if isinstance(exchange, Exchange):
        exchange.promised = framing


class Exchanges:
    """ASGI middleware: an ``Exchange`` in every request's scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the call on and ends its exchange."""
        exchange = Exchange(send=send)
        scope[KEY] = exchange
        refused = False

        async def sending(message: Message) -> None:
            nonlocal refused
            if not exchange.begun:
                await send(message)
            elif message["type"] == "http.response.start":
                refused = message["status"] != 200
            elif not refused:
                await send(message)
            elif not message.get("more_body", False):
                await _fail(exchange, send)

        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:
            raise
        except Exception as error:
            if not exchange.begun:
                raise
            log.exception("unexpected error in %s", scope.get("path"))
            exchange.error = error
            await _fail(exchange, send)
        finally:
            exchange.end()


async def _fail(exchange: Exchange, send: Send) -> None:
    """Ends a stream that was begun with the error that the route came to."""
    framing = exchange.promised
    assert framing is not None
    error = exchange.error or OverloadError("The answer could not be begun.")
    data = framing.failure(error) + framing.end()
    await send({"type": "http.response.body", "body": data, "more_body": False})
