"""One HTTP exchange: what it holds is given back when it is over, however it ends.

A route that acquires a model need not release it. The middleware here stands around every
request; what ``State.acquire`` leases in its name lasts until the last byte is sent, the client
has gone or the route has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

from gristmill.serve.host import Entry

KEY = "gristmill.exchange"


@dataclass
class Exchange:
    """What one exchange holds: the models it uses, and what gives each back."""

    held: dict[Entry, Callable[[], None]] = field(default_factory=dict[Entry, Callable[[], None]])

    def end(self) -> None:
        """Gives everything back."""
        held, self.held = self.held, {}
        for release in held.values():
            release()


class Exchanges:
    """ASGI middleware: an ``Exchange`` in every request's scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the call on and ends its exchange."""
        exchange = Exchange()
        scope[KEY] = exchange
        try:
            await self.app(scope, receive, send)
        finally:
            exchange.end()
