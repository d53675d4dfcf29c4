"""The API key: deny by default, every route but ``/health``, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from gristmill.errors import AuthError
from gristmill.serve import log
from gristmill.serve.errors import error_response

OPEN_PATHS = frozenset({"/health"})


class Keys:
    """The keys that are good now. They may be replaced while the server runs."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Iterable[str]) -> None:
        """From now on these and no others."""
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def good(self, key: bytes) -> bool:
        """Whether it is one of them."""
        digest = _digest(key)
        # Every key is compared, so that the time says nothing of which one nearly matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class ApiKey:
    """ASGI middleware that lets a request through only with one of ``keys``.

    The key comes as ``Authorization: Bearer KEY`` or as ``x-api-key: KEY``. It stands outside
    the router, so a route added later, an unknown path and OPTIONS are all covered.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self.app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401, or passes the call on."""
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        error = AuthError("This server needs an API key: send 'Authorization: Bearer <key>'.")
        await error_response(error, str(scope.get("path", "")))(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            elif name == b"x-api-key" and not given:
                given = value.strip()
        if not self._keys.good(given):
            return False
        log.client.set(f"key {_digest(given).hex()[:16]}")
        return True


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
