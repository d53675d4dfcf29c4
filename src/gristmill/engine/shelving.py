"""The prefix cache and its folder on disk: what is put there, what is taken from there.

A block is written once a second request has used it: what is said only once is not kept. Blocks
are copied out between two steps on the engine's thread, a few at a time; hashing and writing are
a thread's of its own. They are read on the engine's thread when a prompt begins with them: that
takes a small part of the time that computing them would.
"""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from gristmill.backends.ops import BLOCK_TOKENS, Memory
from gristmill.kv.blocks import BlockManager, BlockTable
from gristmill.kv.shelf import Shelf

log = logging.getLogger("gristmill.engine")

BACKLOG = 4
"""Blocks that wait to be written, at most: so many are in memory twice."""
MOST_WANTED = 4096
"""Blocks that are remembered as worth writing."""


class Shelving:
    """Of one engine, on its thread."""

    def __init__(self, manager: BlockManager, memory: Memory, shelf: Shelf) -> None:
        self._manager = manager
        self._memory = memory
        self._shelf = shelf
        self._wanted: OrderedDict[bytes, bytes] = OrderedDict()
        self._writer = ThreadPoolExecutor(1, "gristmill-shelf")
        self._writing: list[Future[None]] = []
        self._failed = False

    def recall(self, table: BlockTable, tokens: array[int], computed: int) -> int:
        """Give a matched table what the folder has of the next blocks; how many tokens are
        computed then. What it had already is now used a second time, so it is to be written."""
        if not table.shared or table.private:
            return computed
        hit = computed // BLOCK_TOKENS
        keys = self._manager.keys(table, tokens, hit)
        if any(not self._shelf.groups(digest) for digest, _ in keys):
            self._want(keys)
        found: list[dict[int, memoryview]] = []
        whole = True
        for key in self._manager.keys(table, tokens, (len(tokens) - 1) // BLOCK_TOKENS)[hit:]:
            if not self._shelf.groups(key[0]):
                break
            blocks = self._shelf.read(*key)
            # After a damaged one the others are looked at all the same: they are dropped, to be
            # written anew, if they are damaged too.
            whole = whole and blocks is not None
            if whole and blocks is not None:
                found.append(blocks)
        end = self._manager.reach(hit, [frozenset(blocks) for blocks in found])
        places = self._manager.extend(table, end) if end > hit else None
        if places is None:
            return computed
        for group, entry, block in places:
            self._memory.fill(group, block, bytes(found[entry - hit][group]))
        self._manager.commit(table, tokens, end * BLOCK_TOKENS)
        every = self._manager.keys(table, tokens, end)
        self._shelf.touch([digest for digest, _ in reversed(every)])
        return end * BLOCK_TOKENS

    def tend(self) -> bool:
        """Copy the next blocks out to be written. Whether there are more."""
        self._writing = [each for each in self._writing if not each.done()]
        while self._wanted and len(self._writing) < BACKLOG and not self._failed:
            digest, tokens = self._wanted.popitem(last=False)
            blocks = self._manager.locate(digest)
            if blocks is None:
                continue  # lost meanwhile
            parts = [
                None if block is None else self._memory.dump(group, block)
                for group, block in enumerate(blocks)
            ]
            self._writing.append(self._writer.submit(self._put, digest, tokens, parts))
            break
        return bool(self._wanted) and not self._failed

    def close(self) -> None:
        """Write what is being written, and no more."""
        self._writer.shutdown()
        self._shelf.close()

    def _want(self, keys: list[tuple[bytes, bytes]]) -> None:
        for digest, tokens in keys:
            if not self._shelf.groups(digest):
                self._wanted[digest] = tokens
        while len(self._wanted) > MOST_WANTED:
            self._wanted.popitem()

    def _put(self, digest: bytes, tokens: bytes, parts: list[bytes | None]) -> None:
        try:
            self._shelf.put(digest, tokens, parts)
        except OSError as error:
            if not self._failed:
                log.warning("the prefix cache's folder is not written any more: %s", error.strerror)
            self._failed = True
