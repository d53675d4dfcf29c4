"""Streams: chunks as they come, signs of life while nothing does; a framing for each dialect."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.errors import GristmillError
from gristmill.serve.bridge import ClientGoneError
from gristmill.serve.errors import dumps, error_body

log = logging.getLogger("gristmill.serve")


class Framing(Protocol):
    """How a dialect writes the values of a stream."""

    @property
    def media_type(self) -> str:
        """The stream's content type."""
        ...

    def chunk(self, value: object) -> bytes:
        """One value."""
        ...

    def alive(self) -> bytes:
        """A sign of life; empty for none."""
        ...

    def failure(self, error: BaseException) -> bytes:
        """An error in the middle of the stream."""
        ...

    def end(self) -> bytes:
        """What every stream ends with."""
        ...


class Held(Protocol):
    """What a stream holds as long as it lasts."""

    def close(self) -> None:
        """The stream has ended, or its client has gone."""
        ...


class OpenAiEvents:
    """Server-sent events without names; ``[DONE]`` at the end, after an error too."""

    media_type = "text/event-stream"

    def chunk(self, value: object) -> bytes:
        """``data: {...}``."""
        return event(value)

    def alive(self) -> bytes:
        """A comment."""
        return b": keep-alive\n\n"

    def failure(self, error: BaseException) -> bytes:
        """``data: {"error": ...}``."""
        return event(error_body(error))

    def end(self) -> bytes:
        """``data: [DONE]``."""
        return b"data: [DONE]\n\n"


class Stream(Response):
    """Sends batches of chunks as they come; a failure is told in the dialect's way.

    ``batches`` yields lists of JSON values, or None for a sign of life. The ticket is closed
    however the stream ends, so a client that leaves stops its work in the engine.
    """

    def __init__(
        self,
        ticket: Held,
        batches: AsyncIterator[list[object] | None],
        framing: Framing | None = None,
    ) -> None:
        self.framing = framing or OpenAiEvents()
        self.media_type = self.framing.media_type
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
        framing = self.framing
        try:
            async for batch in self.batches:
                data = framing.alive() if batch is None else b"".join(map(framing.chunk, batch))
                if data:
                    await send(_part(data))
        except GristmillError as error:
            await send(_part(framing.failure(error)))
        except ClientGoneError:
            raise
        except Exception as error:
            log.exception("unexpected error in a stream")
            await send(_part(framing.failure(error)))
        await send({**_part(framing.end()), "more_body": False})


def event(value: object, name: str | None = None) -> bytes:
    """One event with a JSON value."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + dumps(value) + b"\n\n"


def typed_event(value: object) -> bytes:
    """One event that is named by the ``type`` of its JSON object."""
    return event(value, str(cast("Mapping[str, object]", value)["type"]))


def _part(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}
