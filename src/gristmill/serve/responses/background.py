"""A response that is made while nobody waits for it: polled, followed or cancelled by its id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from gristmill.errors import GristmillError
from gristmill.serve.answers import Group
from gristmill.serve.bridge import Ticket
from gristmill.serve.exchange import Exchange
from gristmill.serve.responses.shape import ResponseEvents, ResponseShape
from gristmill.serve.run import start

log = logging.getLogger("gristmill.serve")


class Run:
    """One such response. Its events are kept, if it is streamed, so that it may be followed
    from any of them; the model stays in use until it has ended."""

    def __init__(self, shape: ResponseShape, exchange: Exchange) -> None:
        self.shape = shape
        self.status = "queued"
        self.events: list[bytes] = []
        self.ended = False
        self._framing = ResponseEvents(shape)
        self._streams = shape.asked.fields.stream
        self._news = asyncio.Event()
        # The exchange ends when the request is answered; what it holds is needed longer.
        self._held = Exchange(exchange.held)
        exchange.held = {}
        try:
            ticket, group = start(shape.job)
        except BaseException:
            self._held.end()
            raise
        shape.group = group
        self.task = asyncio.create_task(self._work(ticket, group))

    def snapshot(self) -> dict[str, object]:
        """The response so far."""
        return self.shape.unfinished(self.status)

    async def _work(self, ticket: Ticket, group: Group) -> None:
        write = self.shape.writer(group)
        try:
            while not group.finished:
                for delta in await ticket.batch():
                    self.status = "in_progress"
                    answer, part = group.feed(delta)
                    self._tell(write(answer, part, delta.finish is not None))
            self._tell(self.shape.ending(group))
        except asyncio.CancelledError:
            self.shape.cancelled()
        except Exception as error:
            if not isinstance(error, GristmillError):
                log.exception("unexpected error in a background response")
            failure = self._framing.failure(error)
            if self._streams:
                self.events.append(failure)
        finally:
            self.ended = True
            ticket.close()
            self._held.end()
            self._wake()

    def _tell(self, events: Sequence[object]) -> None:
        if self._streams:
            self.events.extend(map(self._framing.chunk, events))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def cancel(self) -> None:
        """Ends it; waits until it has ended."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def follow(self, first: int, keep_alive: float) -> AsyncIterator[list[object] | None]:
        """Its events from number ``first`` on, as they come; None where a sign of life is due."""
        at = first
        while True:
            news = self._news
            if at < len(self.events):
                batch: list[object] = list(self.events[at:])
                at += len(batch)
                yield batch
            elif self.ended:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), keep_alive)
                except TimeoutError:
                    yield None


class Replayed:
    """Writes events that are framed already."""

    media_type = "text/event-stream"

    def chunk(self, value: object) -> bytes:
        """As it is."""
        assert isinstance(value, bytes)
        return value

    def alive(self) -> bytes:
        """A comment."""
        return b": keep-alive\n\n"

    def failure(self, error: BaseException) -> bytes:
        """Nothing: an error of the response is one of its events."""
        return b""

    def end(self) -> bytes:
        """Nothing: the response's last event was the end."""
        return b""
