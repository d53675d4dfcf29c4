"""HTTP on the wire: uvicorn's h11 protocol, with bounds, and faults told in JSON.

Added to what h11 checks: how long a head may be, how many headers it may have, how long it may
take to come; and messages that two parsers could read in two ways
(Content-Length beside Transfer-Encoding; RFC 9112, 6.1), which are refused.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from gristmill.serve.errors import dumps, fault_body

HEAD_SECONDS = 20.0
"""How long a connection may take from its opening, or from a head's first byte, to its end."""

LINGER_SECONDS = 1.0
"""How long a client may still send after a fault was answered."""

_SAYINGS = {
    408: "its head did not come to its end in time.",
    431: "its head is longer than this server takes.",
    501: "only the transfer encoding 'chunked' is known here.",
}


class Bounded(h11.Connection):
    """An h11 connection of a server that counts headers and remembers what was wrong."""

    def __init__(self, max_head: int, max_headers: int) -> None:
        super().__init__(h11.SERVER, max_head)
        self._max_head = max_head
        self._max_headers = max_headers
        self.fault: h11.RemoteProtocolError | None = None
        self._chunked = False

    def send(self, event: Any) -> Any:
        """The bytes of an event. A chunk of a body changes nothing of h11's state: it is framed
        here, since a stream has one for every token."""
        if type(event) is h11.Data and self._chunked and self.our_state is h11.SEND_BODY:
            data = bytes(event.data)
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        sent = super().send(event)
        if type(event) is h11.Response:
            self._chunked = b"transfer-encoding: chunked" in sent.lower()
        return sent

    def next_event(self) -> Any:
        """The next event; raises RemoteProtocolError for what is no sound request."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                return self._checked(event)
            return event
        except h11.RemoteProtocolError as fault:
            self.fault = self.fault or fault
            raise

    def _checked(self, request: h11.Request) -> h11.Request:
        # h11 itself bounds only a head that comes in several pieces.
        size = sum(len(name) + len(value) + 4 for name, value in request.headers)
        if len(request.target) + size > self._max_head:
            raise h11.RemoteProtocolError("", 431)
        if len(request.headers) > self._max_headers:
            raise h11.RemoteProtocolError(f"at most {self._max_headers} headers are taken.", 431)
        if request.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("HTTP/1.1 and HTTP/1.0 are spoken here.", 505)
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" in names:
            if b"content-length" in names:
                raise h11.RemoteProtocolError("it has both Content-Length and Transfer-Encoding.")
            if request.http_version == b"1.0":
                raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding.")
        target = request.target
        lower = target[:8].lower()
        if lower.startswith((b"http://", b"https://")):
            # The absolute form, which clients of a proxy send (RFC 9112, 3.2.2).
            rest = target.split(b"//", 1)[1]
            cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=-1)
            path = rest[cut:] if cut >= 0 else b"/"
            path = path if path.startswith(b"/") else b"/" + path
            return h11.Request(
                method=request.method,
                target=path,
                headers=list(request.headers),
                http_version=request.http_version,
            )
        return request


class Protocol(H11Protocol):
    """One connection."""

    conn: Bounded
    _timer: asyncio.TimerHandle | None = None
    _closing: bool = False

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        bounds = self.config.h11_max_incomplete_event_size or 65536
        self.conn = Bounded(bounds, getattr(self.config, "max_headers", 256))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; its head is waited for."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come. A head that has begun has its time."""
        if self._closing:
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self._timer is None and not self.transport.is_closing():
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _head_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        begun, _ = self.conn.trailing_data
        if begun:
            self.conn.fault = h11.RemoteProtocolError("", 408)
            self.send_400_response("")
        else:
            self.transport.close()

    def _should_upgrade(self) -> bool:
        """Never: what else is spoken over HTTP is not spoken here; the request is answered."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Answers a fault on the wire, and closes: what follows in the bytes is not known."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # none before the first request
        begun = False
        if cycle is not None and not cycle.response_complete:
            begun = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
        if begun or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self.transport.write(self._fault())
        if self.transport.can_write_eof():
            # Closed on unread bytes, a connection is reset, and the client would see that
            # instead of the answer: what it still sends is read for a moment, and dropped.
            self.transport.write_eof()
        self._closing = True
        self._head_came()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _fault(self) -> bytes:
        fault = self.conn.fault
        status = fault.error_status_hint if fault is not None else 400
        text = str(fault) if fault is not None else ""
        if not text or text == "Receive buffer too long" or status == 501:
            text = _SAYINGS.get(status, "it is not HTTP.")
        body = dumps(fault_body(status, f"The request is not sound: {text}"))
        reason = HTTPStatus(status).phrase
        head = (
            f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\ndate: {formatdate(usegmt=True)}\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode() + body
