"""How fast this machine reads its memory: the roof under which a decode step lives."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_MIB = 1 << 20


def read_bandwidth(threads: int, mib: int = 128, tries: int = 10) -> float:
    """Bytes a second that ``threads`` threads together read from memory, the best of ``tries``.

    Each thread takes the maximum of an array of ``mib`` MiB of its own: numpy does so with
    wide loads and without the GIL. The arrays must be larger than the caches.
    """
    arrays = [np.ones(mib * _MIB // 4, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(tries):
            started = time.perf_counter()
            list(pool.map(np.max, arrays))
            best = max(best, threads * mib * _MIB / (time.perf_counter() - started))
    return best


def method(threads: int, mib: int = 128, tries: int = 10) -> str:
    """How ``read_bandwidth`` measures, for the machine's card."""
    return f"numpy maximum over {mib} MiB in each of {threads} threads, best of {tries}"
