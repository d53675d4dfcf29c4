"""What lies in the prefix cache for a slot: read out, put back, dropped.

The cache is touched on the engine's thread only, between two steps, and a few blocks at a time:
long prefixes do not hold up those who are being answered. Only whole blocks can be found in the
cache, so the last tokens of a slot (fewer than a block) are not among what is saved.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial
from typing import Protocol, TypeVar

from gristmill.backends.ops import BLOCK_TOKENS, Memory
from gristmill.engine.slots import Slots
from gristmill.errors import FormatError, OverloadError, RequestError
from gristmill.kv.blocks import BlockManager, BlockTable
from gristmill.kv.snapshot import Snapshot

T = TypeVar("T")

EARLIER = 64
"""Most blocks before its window that are saved of a window group."""
BATCH = 64
"""Blocks copied between two steps."""


class Run(Protocol):
    """Has something done on the engine's thread, and waits for it (``Engine.between``)."""

    def __call__(self, work: Callable[[], T], /) -> T:
        """What ``work`` returns or raises."""
        ...


class Prefixes:
    """The slots' content in one engine's cache. ``save`` and ``restore`` run on any other thread
    than the engine's; ``erase`` and ``clear`` on that."""

    def __init__(self, manager: BlockManager, memory: Memory, slots: Slots) -> None:
        self._manager = manager
        self._memory = memory
        self._slots = slots

    def save(self, slot: int, run: Run) -> Snapshot:
        """What of a slot's tokens is cached. Raises RequestError when that is nothing,
        OverloadError while the slot is busy."""
        tokens, table = run(partial(self._pin, slot))
        try:
            places = list(_places(table))
            data: list[bytes] = []
            for at in range(0, len(places), BATCH):
                data += run(partial(self._read, places[at : at + BATCH]))
        finally:
            run(partial(self._manager.release, table))
        groups = range(len(table.rows))
        blocks: list[list[bytes]] = [[] for _ in groups]
        for (group, _), each in zip(places, data, strict=True):
            blocks[group].append(each)
        return Snapshot(tokens, tuple(map(tuple, blocks)))

    def _pin(self, slot: int) -> tuple[array[int], BlockTable]:
        """A slot's cached tokens, and a table that holds their blocks: those that the next token
        looks at; in a window group some more before them, so that a shorter prompt finds its
        window too."""
        tokens, salt = self._content(slot)
        if salt:
            raise RequestError(
                f"What ran in slot {slot} last had a cache_salt; it is not saved, for whoever "
                "restored it would share it with all.",
                "id_slot",
            )
        table = self._manager.open()
        found = self._manager.match(table, tokens + array("i", [0]))
        if found == 0:
            raise RequestError(
                f"Slot {slot} has nothing to save: no whole block ({BLOCK_TOKENS} tokens) of what "
                "ran there is in the cache.",
                "id_slot",
            )
        self._manager.widen(table, tokens, EARLIER)
        return tokens[:found], table

    def _read(self, places: Seq[tuple[int, int]]) -> list[bytes]:
        return [self._memory.dump(group, block) for group, block in places]

    def restore(self, slot: int, snapshot: Snapshot, run: Run) -> None:
        """Put a saved prefix back into the cache. Raises OverloadError when there is no room or
        the slot is busy, FormatError when the blocks are not those that the model needs."""
        table = run(partial(self._adopt, slot, snapshot))
        try:
            data = [each for blocks in snapshot.blocks for each in blocks]
            pairs = list(zip(_places(table), data, strict=True))
            for at in range(0, len(pairs), BATCH):
                run(partial(self._write, pairs[at : at + BATCH]))
        except BaseException:
            run(partial(self._manager.release, table))
            raise
        run(partial(self._keep, slot, table, snapshot))

    def _adopt(self, slot: int, snapshot: Snapshot) -> BlockTable:
        self._content(slot)
        tokens = len(snapshot.tokens)
        counts = [len(blocks) for blocks in snapshot.blocks]
        least = self._manager.least(tokens)
        if len(counts) != len(least) or any(
            not needed <= count <= tokens // BLOCK_TOKENS
            for needed, count in zip(least, counts, strict=True)
        ):
            raise FormatError("The saved slot has not the blocks that this model needs.")
        table = self._manager.open()
        if not self._manager.adopt(table, tokens, counts):
            raise OverloadError("The KV cache has no room for the saved slot now; try again later.")
        return table

    def _write(self, pairs: Seq[tuple[tuple[int, int], bytes]]) -> None:
        for (group, block), data in pairs:
            self._memory.fill(group, block, data)

    def _keep(self, slot: int, table: BlockTable, snapshot: Snapshot) -> None:
        self._manager.commit(table, snapshot.tokens, len(snapshot.tokens))
        self._manager.release(table)
        if not self._slots.busy(slot):
            self._slots.set(slot, snapshot.tokens)

    def erase(self, slot: int) -> int:
        """Drop what is cached of a slot's tokens and used by nobody; how many tokens those were.
        Raises OverloadError while the slot is busy."""
        tokens, salt = self._content(slot)
        dropped = self._manager.forget(self._manager.open(salt), tokens)
        self._slots.set(slot, array("i"))
        return dropped

    def clear(self) -> None:
        """Drop all that is cached and used by nobody."""
        self._manager.clear_cache()

    def _content(self, slot: int) -> tuple[array[int], str]:
        if not self._manager.caching:
            raise RequestError("The prefix cache is switched off, so slots hold nothing.")
        if self._slots.busy(slot):
            raise OverloadError(f"Slot {slot} is busy; try again when its answer is complete.")
        return self._slots.content(slot)


def _places(table: BlockTable) -> Iterator[tuple[int, int]]:
    """(group, block) of all that a table holds."""
    for group, row in enumerate(table.rows):
        for block in row[table.starts[group] :]:
            yield group, block
