"""When the bytes of the KV cache grow: on demand, in slabs, up to a limit per group."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.backends.ops import Memory
from gristmill.errors import ResourceError
from gristmill.kv.blocks import blocks_for
from gristmill.types import StateSpec, Window

SLAB_BYTES = 16 << 20
"""Least growth at a time, in bytes; large pools grow by a quarter of themselves."""


class Pools:
    """The policy over a back end's ``Memory``. ``limits`` are blocks per group.

    Memory that cannot grow is a full pool, not an error: the scheduler then preempts.
    """

    def __init__(self, memory: Memory, limits: Sequence[int], slab_bytes: int = SLAB_BYTES) -> None:
        self._memory = memory
        self._limits = tuple(limits)
        self._slab_bytes = slab_bytes
        self.refusals = 0
        """Times the machine had less memory than the plan allowed."""

    def blocks(self, group: int) -> int:
        """Blocks there are."""
        return self._memory.blocks(group)

    def limit(self, group: int) -> int:
        """Blocks there may be."""
        return self._limits[group]

    def grow(self, group: int, blocks: int) -> int:
        """Try to have at least ``blocks``; the number there are afterwards."""
        have = self._memory.blocks(group)
        slab = max(1, self._slab_bytes // self._memory.block_bytes(group), have // 4)
        least = min(blocks, self._limits[group])
        for target in (min(max(least, have + slab), self._limits[group]), least):
            if target <= have:
                break
            try:
                self._memory.resize(group, target)
                break
            except (ResourceError, MemoryError):
                self.refusals += 1
        return self._memory.blocks(group)

    def used_bytes(self) -> int:
        """Bytes taken from the machine so far."""
        groups = range(len(self._limits))
        return sum(self._memory.blocks(g) * self._memory.block_bytes(g) for g in groups)


def block_limits(states: Sequence[StateSpec], tokens: int, step_tokens: int) -> tuple[int, ...]:
    """Blocks per group that together serve ``tokens`` tokens.

    A full-attention group holds all of them. A window group holds what one sequence needs in
    any case, and else half as many: running sequences keep a window each, the rest keeps the
    windows of finished ones for the prefix cache.
    """
    whole = blocks_for(tokens)
    limits: list[int] = []
    for spec in states:
        if isinstance(spec, Window):
            alone = blocks_for(spec.window) + blocks_for(step_tokens) + 2
            limits.append(min(whole, max(alone, whole // 2)))
        else:
            limits.append(whole)
    return tuple(limits)


def bytes_for(
    states: Sequence[StateSpec], block_bytes: Sequence[int], tokens: int, step_tokens: int
) -> int:
    """Bytes of all groups at the limits that serve ``tokens`` tokens."""
    limits = block_limits(states, tokens, step_tokens)
    return sum(n * size for n, size in zip(limits, block_bytes, strict=True))


def tokens_within(
    states: Sequence[StateSpec], block_bytes: Sequence[int], limit: int, step_tokens: int, most: int
) -> int:
    """Most tokens, up to ``most``, whose limits stay within ``limit`` bytes; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_for(states, block_bytes, middle, step_tokens) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
