"""When the bytes of the KV cache grow: on demand, in slabs, up to a limit per group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gristmill.backends.ops import Memory
from gristmill.errors import ResourceError
from gristmill.kv.blocks import blocks_for
from gristmill.types import Slot, StateSpec, Window

SLAB_BYTES = 16 << 20
"""Least growth at a time, in bytes; large pools grow by a quarter of themselves."""


class Room(Protocol):
    """What the machine has left."""

    def __call__(self) -> int:
        """Bytes that may be taken now."""
        ...

    def taken(self, count: int, /) -> None:
        """Bytes were taken."""
        ...


class Pools:
    """The policy over a back end's ``Memory``. ``limits`` are blocks per group; ``room`` None is
    without bound.

    Memory that cannot grow is a full pool, not an error: the scheduler then preempts.
    """

    def __init__(
        self,
        memory: Memory,
        limits: Sequence[int],
        slab_bytes: int = SLAB_BYTES,
        room: Room | None = None,
    ) -> None:
        self._memory = memory
        self._limits = tuple(limits)
        self._slab_bytes = slab_bytes
        self._room = room
        self.refusals = 0
        """Times the machine had less memory than the plan allowed."""
        self.held_back = False
        """Whether the last growth failed because the machine has too little now."""

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
        self.held_back = False
        for target in (min(max(least, have + slab), self._limits[group]), least):
            if target <= have:
                break
            size = (target - have) * self._memory.block_bytes(group)
            if self._room is not None and size > self._room():
                self.held_back = True
                continue
            try:
                self._memory.resize(group, target)
                self.held_back = False
                if self._room is not None:
                    self._room.taken(size)
                break
            except (ResourceError, MemoryError):
                self.refusals += 1
        return self._memory.blocks(group)

    def cut(self, group: int, blocks: int) -> None:
        """Give all but the first ``blocks`` back to the machine."""
        self._memory.resize(group, blocks)

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one block's bytes onto another."""
        self._memory.copy(group, source, target)

    def used_bytes(self) -> int:
        """Bytes taken from the machine so far."""
        groups = range(len(self._limits))
        return sum(self._memory.blocks(g) * self._memory.block_bytes(g) for g in groups)


@dataclass(frozen=True, slots=True)
class Need:
    """What pools are sized by: the state groups, and how many sequences run in which steps."""

    states: tuple[StateSpec, ...]
    block_bytes: tuple[int, ...]
    running: int
    step_tokens: int

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks per group that together serve ``tokens`` tokens.

        A full-attention group holds all of them. A window group holds a window for each
        running sequence and the rows of a step, or half of all tokens if that is more: the
        windows of finished sequences, for the prefix cache. A group of states holds for each
        running sequence, or for each 256 tokens if those are fewer, the state it goes on from,
        that of its step, and two checkpoints.
        """
        whole = blocks_for(tokens)
        return tuple(
            min(whole, max(self._windows(spec.window), whole // 2))
            if isinstance(spec, Window)
            else 4 * min(self.running, -(-whole // 8))
            if isinstance(spec, Slot)
            else whole
            for spec in self.states
        )

    def bytes(self, tokens: int) -> int:
        """Bytes of the blocks that serve ``tokens`` tokens."""
        return sum(n * size for n, size in zip(self.blocks(tokens), self.block_bytes, strict=True))

    def tokens_within(self, limit: int, most: int) -> int:
        """Most tokens, up to ``most``, whose blocks stay within ``limit`` bytes; 0 if none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _windows(self, window: int) -> int:
        return self.running * (blocks_for(window) + 2) + blocks_for(self.step_tokens)
