"""Who is next: the line of the waiting, fair among clients.

A client is the first line of ``Request.client``; what follows tells its users apart, between whom
the client's share is split likewise. Of every user the next is who comes first by
``Sequence.order`` (priority, arrival, index). Among them goes first: the smaller priority; then
whose client, then who was served less, counted in ``Shares``; then who came first. So somebody
with one request does not stand behind somebody with a thousand, and a user's own requests keep
their order.

Nothing starves: every ``TURN``-th to be let in is the one who waits longest, whatever its
priority, once it has waited for ``PATIENCE`` seconds. If m others came before it, it is in after
``TURN * (m + 1)`` admissions at the latest; from then on it has the priority of the first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count

from gristmill.engine.sequence import Sequence

TURN = 4
PATIENCE = 30.0
REMEMBERED = 4096
"""Clients and users whose service is remembered after they left."""


class Shares:
    """What each client has been given: tokens, an answer's count ``ANSWER`` times.

    A client that comes back after a while has no credit from its absence: it begins with what
    the least served of those present has had.
    """

    ANSWER = 4
    """A token of an answer costs about as much as this many tokens of a prompt."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._present: dict[str, int] = {}

    def enter(self, client: str) -> None:
        """One more sequence of a client is there."""
        for name in _levels(client):
            if name not in self._present:
                floor = min((self._served[each] for each in self._present), default=0)
                self._served[name] = max(floor, self._served.get(name, 0))
                self._present[name] = 0
            self._present[name] += 1

    def leave(self, client: str) -> None:
        """One less."""
        for name in _levels(client):
            self._present[name] -= 1
            if self._present[name] == 0:
                del self._present[name]
        if not self._present:
            self._served.clear()
        elif len(self._served) > max(REMEMBERED, 2 * len(self._present)):
            self._served = {each: self._served[each] for each in self._present}

    def charge(self, client: str, tokens: int, answer: bool) -> None:
        """A client's sequence has had ``tokens`` tokens computed."""
        for name in _levels(client):
            self._served[name] += tokens * self.ANSWER if answer else tokens

    def served(self, client: str) -> tuple[int, int]:
        """What it has had: the client, and of that its user."""
        return self._served[owner(client)], self._served[client]


def owner(client: str) -> str:
    """Whose a request is: the first line of ``Request.client``."""
    return client.partition("\n")[0]


def _levels(client: str) -> tuple[str, ...]:
    return (owner(client), client) if "\n" in client else (client,)


class Line:
    """Sequences that wait. ``clock`` gives seconds, as ``time.monotonic``."""

    def __init__(self, shares: Shares, clock: Callable[[], float]) -> None:
        self._shares = shares
        self._clock = clock
        self._queues: dict[str, list[tuple[tuple[int, int, int], int, Sequence]]] = {}
        self._ties = count()
        self._turn = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for queue in self._queues.values() for _, _, sequence in queue)

    def add(self, sequence: Sequence) -> None:
        """At its place among its client's."""
        queue = self._queues.setdefault(sequence.request.client, [])
        heapq.heappush(queue, (sequence.order, next(self._ties), sequence))

    def remove(self, sequence: Sequence) -> None:
        """Out of the line, wherever it stands in it."""
        client = sequence.request.client
        queue = self._queues[client]
        if queue[0][2] is sequence:
            heapq.heappop(queue)
        else:
            queue[:] = [entry for entry in queue if entry[2] is not sequence]
            heapq.heapify(queue)
        if not queue:
            del self._queues[client]

    def head(self) -> Sequence | None:
        """Who is next; the same until somebody comes, goes or is served."""
        if not self._queues:
            return None
        if self._turn % TURN == TURN - 1:
            oldest = min(self, key=_arrival)
            if self.waited(oldest) >= PATIENCE:
                return oldest
        if len(self._queues) == 1:
            return next(iter(self._queues.values()))[0][2]
        return min((queue[0][2] for queue in self._queues.values()), key=self._place)

    def let_in(self, sequence: Sequence) -> None:
        """The head leaves the line, to run."""
        first = min(queue[0][0][0] for queue in self._queues.values())
        self.remove(sequence)
        self._turn += 1
        if sequence.order[0] > first and self.waited(sequence) >= PATIENCE:
            sequence.order = (first, *sequence.order[1:])

    def waited(self, sequence: Sequence) -> float:
        """Seconds since its request came."""
        return self._clock() - sequence.clock.submitted

    def _place(self, sequence: Sequence) -> tuple[int, tuple[int, int], int]:
        priority, arrival, _ = sequence.order
        return priority, self._shares.served(sequence.request.client), arrival


def _arrival(sequence: Sequence) -> tuple[int, int]:
    return sequence.order[1:]
