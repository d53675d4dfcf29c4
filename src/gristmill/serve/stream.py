"""Server-sent events: chunks as they come, comments while nothing does, ``[DONE]`` at the end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.errors import GristmillError
from gristmill.serve.bridge import ClientGoneError, Ticket
from gristmill.serve.errors import dumps, error_body

log = logging.getLogger("gristmill.serve")

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


class EventStream(Response):
    """Sends batches of chunks as events; a failure is an error event, then ``[DONE]``.

    ``batches`` yields lists of JSON values, or None for a comment. The ticket is closed
    however the stream ends, so a client that leaves stops its work in the engine.
    """

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, batches: AsyncIterator[list[object] | None]) -> None:
        self.status_code = 200
        self.background = None
        self.ticket = ticket
        self.batches = batches
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the whole stream."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._run(send)
        except ClientGoneError:
            pass
        finally:
            self.ticket.close()

    async def _run(self, send: Send) -> None:
        try:
            async for batch in self.batches:
                data = COMMENT if batch is None else b"".join(map(event, batch))
                if data:
                    await send(_part(data))
        except GristmillError as error:
            await send(_part(event(error_body(error))))
        except ClientGoneError:
            raise
        except Exception as error:
            log.exception("unexpected error in a stream")
            await send(_part(event(error_body(error))))
        await send({**_part(DONE), "more_body": False})


def event(value: object) -> bytes:
    """One event with a JSON value."""
    return b"data: " + dumps(value) + b"\n\n"


def _part(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}
