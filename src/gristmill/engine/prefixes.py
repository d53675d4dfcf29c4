"""What lies in the prefix cache for a slot: read out, put back, dropped.

All of it happens on the engine's thread, between two steps. Only whole blocks can be found in the
cache, so the last tokens of a slot (fewer than a block) are not among what is saved.
"""

from __future__ import annotations

from array import array

from gristmill.backends.ops import BLOCK_TOKENS, Memory
from gristmill.engine.slots import Slots
from gristmill.errors import FormatError, OverloadError, RequestError
from gristmill.kv.blocks import BlockManager, BlockTable
from gristmill.kv.snapshot import Snapshot

EARLIER = 64
"""Most blocks before its window that are saved of a window group."""


class Prefixes:
    """The slots' content in one engine's cache. Used by the engine's thread only."""

    def __init__(self, manager: BlockManager, memory: Memory, slots: Slots) -> None:
        self._manager = manager
        self._memory = memory
        self._slots = slots

    def save(self, slot: int) -> Snapshot:
        """What of a slot's tokens is cached. Raises RequestError when that is nothing,
        OverloadError while the slot is busy."""
        tokens, salt = self._content(slot)
        if salt:
            raise RequestError(
                f"What ran in slot {slot} last had a cache_salt; it is not saved, for whoever "
                "restored it would share it with all.",
                "id_slot",
            )
        table = self._manager.open(salt)
        found = self._manager.match(table, tokens + array("i", [0]))
        if found == 0:
            raise RequestError(
                f"Slot {slot} has nothing to save: no whole block ({BLOCK_TOKENS} tokens) of what "
                "ran there is in the cache.",
                "id_slot",
            )
        try:
            blocks = tuple(
                tuple(self._memory.dump(group, block) for block in self._kept(table, tokens, group))
                for group in range(len(table.rows))
            )
        finally:
            self._manager.release(table)
        return Snapshot(tokens[:found], blocks)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Put a saved prefix back into the cache. Raises OverloadError when there is no room or
        the slot is busy, FormatError when the blocks are not those that the model needs."""
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
        try:
            for group, blocks in enumerate(snapshot.blocks):
                held = table.rows[group][table.starts[group] :]
                for block, data in zip(held, blocks, strict=True):
                    self._memory.fill(group, block, data)
            self._manager.commit(table, snapshot.tokens, tokens)
        finally:
            self._manager.release(table)
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

    def _kept(self, table: BlockTable, tokens: array[int], group: int) -> list[int]:
        """The blocks to save: those that the next token looks at; in a window group some more
        before them, so that a shorter prompt finds its window too."""
        held = table.rows[group][table.starts[group] :]
        return [*self._manager.earlier(table, tokens, group, EARLIER), *held]

    def _content(self, slot: int) -> tuple[array[int], str]:
        if not self._manager.caching:
            raise RequestError("The prefix cache is switched off, so slots hold nothing.")
        if self._slots.busy(slot):
            raise OverloadError(f"Slot {slot} is busy; try again when its answer is complete.")
        return self._slots.content(slot)
