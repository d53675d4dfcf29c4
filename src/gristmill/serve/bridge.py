"""Thread hop two: deltas from the engine's thread to the event loop, and aborts back.

A step may hand out a hundred deltas. They are put in one queue and the loop is woken once;
whatever has come by then is delivered together. Until that is written to the clients the engine,
which computes the next step on all cores, gives way to the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakSet, ref

from starlette.types import Receive

from gristmill.errors import GristmillError
from gristmill.serve.protocol import Engine, Resting
from gristmill.types import Delta, Request


class ClientGoneError(Exception):
    """The client closed its connection: nobody is left to answer."""


class Ticket:
    """The engine requests behind one HTTP request. Lives on the event loop.

    ``close`` must be called however the answer ends; it aborts what still runs.
    """

    def __init__(self, bridge: Bridge, engine: Engine) -> None:
        self._bridge = bridge
        self._engine = engine
        self._rests = isinstance(engine, Resting)
        self._open: dict[str, int] = {}
        self._arrived: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._since = 0.0
        self.at_end: Callable[[], None] | None = None
        """Called once, when the ticket is closed."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queues all requests at the engine, or none: raises what the engine raises."""
        self._bridge.tickets.add(self)
        for request in requests:
            self._open[request.id] = request.n
            try:
                self._engine.submit(request, self._sink)
            except BaseException:
                del self._open[request.id]
                self.close()
                raise

    def _sink(self, delta: Delta) -> None:
        self._bridge.post(self, delta)
        if not self._rests:
            self._bridge.wake()

    def watch(self, receive: Receive) -> None:
        """Begins to look for the client's going away."""
        self._watcher = asyncio.create_task(self._watch(receive))

    def expire(self, seconds: float, error: Exception) -> None:
        """Ends the answer with ``error`` if it is not complete by then."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fail, error)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.fail(ClientGoneError())

    async def batch(self, patience: float | None = None) -> list[Delta]:
        """The deltas that have come, at least one; empty after ``patience`` seconds of silence.

        Raises: ClientGoneError, or the error the answer was ended with (shutdown).
        """
        if not self._arrived and self._error is None:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            self._since = loop.time()
            if patience is not None and self._silence is None:
                self._silence = loop.call_later(patience, self._silent, patience)
            try:
                await waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        arrived, self._arrived = self._arrived, []
        return arrived

    def _silent(self, patience: float) -> None:
        """Wakes whoever has waited for ``patience`` seconds. One timer does for a whole stream:
        to set and cancel one for every batch costs more than the batch."""
        loop = asyncio.get_running_loop()
        left = 0.0 if self._waiter is None else self._since + patience - loop.time()
        self._silence = None
        if self._waiter is None:
            return
        if left > 0:
            self._silence = loop.call_later(left, self._silent, patience)
        else:
            _wake(self._waiter)

    def feed(self, delta: Delta) -> None:
        """A delta has come (called by the bridge)."""
        if delta.finish is not None and delta.request_id in self._open:
            self._open[delta.request_id] -= 1
            if self._open[delta.request_id] <= 0:
                del self._open[delta.request_id]
        self._arrived.append(delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the answer with an error and frees the engine of it."""
        if self._error is None:
            self._error = error
        self._abort()
        self._wake()

    def close(self) -> None:
        """Aborts what still runs and forgets the request."""
        self._abort()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        for timer in (self._timer, self._silence):
            if timer is not None:
                timer.cancel()
        self._bridge.forget(self)
        at_end, self.at_end = self.at_end, None
        if at_end is not None:
            at_end()

    def _abort(self) -> None:
        for request_id in self._open:
            self._engine.abort(request_id)
        self._open.clear()

    def _wake(self) -> None:
        if self._waiter is not None:
            _wake(self._waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Bridge:
    """All open tickets, and the queue their deltas come through."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tickets: set[Ticket] = set()
        self._loop = loop
        self._queue: deque[tuple[Ticket, Delta]] = deque()
        self._scheduled = False
        self._idle: asyncio.Future[None] | None = None
        self._resting: WeakSet[Resting] = WeakSet()
        """Engines that say themselves when it is time to wake the loop."""

    def post(self, ticket: Ticket, delta: Delta) -> None:
        """Called on the engine's thread. Only appends; ``wake`` is to follow."""
        self._queue.append((ticket, delta))

    def wake(self) -> None:
        """Called on an engine's thread. Has what was posted delivered."""
        if self._queue and not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has closed: the process is ending
                self._queue.clear()

    def _deliver(self) -> None:
        # Cleared first: a delta appended from here on finds it False and schedules anew.
        self._scheduled = False
        while self._queue:
            ticket, delta = self._queue.popleft()
            ticket.feed(delta)
        if self._resting:  # called after those whom the deltas woke, once they have written
            self._loop.call_soon(self._written)

    def _written(self) -> None:
        if not self._scheduled:
            for engine in self._resting:
                engine.give_way(False)

    def open(self, engine: Engine) -> Ticket:
        """A ticket for one HTTP request."""
        if isinstance(engine, Resting) and engine not in self._resting:
            self._resting.add(engine)
            engine.at_rest(partial(self._at_rest, ref(engine)))
        return Ticket(self, engine)

    def _at_rest(self, engine: ref[Resting]) -> None:
        """Called on an engine's thread, before it computes."""
        resting = engine()
        if self._queue and resting is not None:
            resting.give_way(True)
        self.wake()

    def forget(self, ticket: Ticket) -> None:
        """The ticket is closed."""
        self.tickets.discard(ticket)
        if not self.tickets and self._idle is not None:
            _wake(self._idle)

    def tell_all(self, error: GristmillError) -> None:
        """Ends every running answer with ``error``."""
        for ticket in list(self.tickets):
            ticket.fail(error)

    async def idle(self, patience: float) -> bool:
        """Waits until no answer runs; False when ``patience`` seconds were not enough."""
        if not self.tickets:
            return True
        self._idle = self._loop.create_future()
        try:
            await asyncio.wait_for(self._idle, patience)
        except TimeoutError:
            return False
        finally:
            self._idle = None
        return True
