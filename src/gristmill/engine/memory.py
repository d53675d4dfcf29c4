"""Between the KV pools and a machine whose memory others use too.

What may be taken is looked up again while the server runs: memory cgroups may be shared, and
their limits change. As long as there is more than a reserve left the pools grow as they like.
Below it the cache is shed, the least recent first; what still is missing comes from those who
run, of whom the youngest goes back into the line. Whoever needs memory then waits for it. When
there is nothing to do, memory that holds nothing is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gristmill.engine.scheduler import Scheduler
from gristmill.kv.blocks import BlockManager
from gristmill.kv.pools import Pools

EVERY = 1.0
"""Seconds between two looks while the engine runs."""
IDLE = 10.0
"""Seconds of rest after which memory is given back."""
_FRESH = 0.2
"""Seconds that a look at the machine is good for."""


def reserve_of(limit: int) -> int:
    """Bytes that are left to others, of a machine or cgroup of ``limit`` bytes."""
    return max(64 << 20, limit // 50)


class Headroom:
    """What may still be taken: ``available`` bytes less a reserve. ``available`` reads the files
    of the system, so its answer is kept for a moment."""

    def __init__(
        self, available: Callable[[], int], reserve: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._available = available
        self._reserve = reserve
        self._clock = clock
        self._read_at = float("-inf")
        self._left = 0

    def __call__(self) -> int:
        """Bytes; negative if the reserve is touched."""
        now = self._clock()
        if now - self._read_at >= _FRESH:
            self._left = self._available() - self._reserve
            self._read_at = now
        return self._left

    def taken(self, count: int) -> None:
        """Bytes were taken (or, negative, given back) since the last look."""
        self._left -= count


class Steward:
    """Looks after one engine's memory, on its thread. ``headroom`` None: it is without bound."""

    def __init__(
        self,
        manager: BlockManager,
        pools: Pools,
        headroom: Headroom | None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._manager = manager
        self._pools = pools
        self._headroom = headroom
        self._clock = clock
        self._looked = clock()
        self._busy_at = clock()
        self.shed_bytes = 0
        """Given back because the machine was short of memory."""

    def tend(self, scheduler: Scheduler) -> None:
        """See to it that there is memory left; does nothing most of the times it is called."""
        now = self._clock()
        if scheduler.busy:
            self._busy_at = now
        if now - self._looked < EVERY:
            return
        self._looked = now
        scheduler.retry()
        if self._headroom is not None and self._headroom() < 0:
            self._shed(-self._headroom())
            if self._headroom() < 0 and len(scheduler.running) > 1:
                scheduler.send_back()
                self._shed(-self._headroom())
        elif now - self._busy_at >= IDLE:
            self._manager.shrink([use.used + use.cached for use in self._manager.use()])

    def idle_for(self) -> float | None:
        """Seconds to sleep at most when there is nothing to do, None if nothing is held."""
        return IDLE / 2 if any(use.present for use in self._manager.use()) else None

    def _shed(self, short: int) -> None:
        before = self._pools.used_bytes()
        if before == 0:
            return
        kept = max(0.0, 1 - short / before)
        self._manager.shrink([int(use.present * kept) for use in self._manager.use()])
        given = before - self._pools.used_bytes()
        self.shed_bytes += given
        if self._headroom is not None:
            self._headroom.taken(-given)
