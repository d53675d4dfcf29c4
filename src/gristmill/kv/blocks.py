"""Which block of memory holds which tokens: integers only, no bytes.

A model's layers fall into state groups (``ops.state_groups``); each group has its own
numbered blocks of ``BLOCK_TOKENS`` tokens, and every sequence has one block table per group.
Entry ``i`` of a table is the block of tokens ``[32·i, 32·(i+1))``::

    tokens     0 ........ 31 | 32 ....... 63 | 64 ....... 95 | 96 ..
    full         block 7     |    block 2    |    block 9    |  block 4
    window         -1        |    block 0    |    block 3    |  block 5
                let go        `----------- still seen -----------'
    shared        yes             yes              yes          never: being written

A block is in one of three states:

- *used*: ``refs > 0`` tables name it;
- *cached*: nobody names it, but the hash map still finds its content; the least recently
  used is taken first when memory is short, so eviction costs nothing before it is needed;
- *fresh*: nobody names it and it holds nothing worth finding.

Content is found by a chain of keyed hashes: a full block's digest covers its parent's digest
and its own token ids, so equal digests mean equal tokens from the first one on. Only full
blocks are ever shared, hence a block that is being written has one owner.
"""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import EngineError, UnsupportedError
from gristmill.types import Paged, StateSpec, Window

LET_GO = -1
"""Table entry of a block that fell out of a window."""


def blocks_for(tokens: int) -> int:
    """Blocks that ``tokens`` tokens take."""
    return -(-tokens // BLOCK_TOKENS)


class Grower(Protocol):
    """Whoever owns the bytes (``pools.Pools``, or a counter in tests)."""

    def blocks(self, group: int) -> int:
        """Blocks there are."""
        ...

    def limit(self, group: int) -> int:
        """Blocks there may be."""
        ...

    def grow(self, group: int, blocks: int) -> int:
        """Try to have at least ``blocks``; the number there are afterwards. Never raises."""
        ...


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence. Only ``BlockManager`` changes it.

    ``rows[g]`` are group g's block ids; ``starts[g]`` its first entry that is still held.
    ``digests`` are those of the sequence's full blocks as far as anyone asked for them;
    ``registered`` blocks from the start have been offered to the hash map. ``room`` tokens
    have their blocks in every group; before ``due`` tokens are computed nothing is to be
    published or let go (both save time: most steps add one token). ``shared`` False keeps the
    sequence apart: it takes nothing from the cache and leaves nothing there.
    """

    root: bytes
    rows: tuple[array[int], ...]
    starts: list[int]
    digests: list[bytes] = field(default_factory=list[bytes])
    registered: int = 0
    room: int = 0
    due: int = 0
    shared: bool = True


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How many blocks of a group are named by sequences, kept for reuse, there, and allowed."""

    used: int
    cached: int
    present: int
    limit: int


class _Group:
    """The blocks of one state group."""

    __slots__ = ("by_digest", "cached", "digests", "fresh", "refs", "window")

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.refs: list[int] = []
        self.digests: list[bytes | None] = []
        self.fresh: list[int] = []
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.by_digest: dict[bytes, int] = {}

    def add(self, blocks: int) -> None:
        """Take over newly grown blocks, the lowest numbers to be used first."""
        first = len(self.refs)
        self.refs.extend([0] * (blocks - first))
        self.digests.extend([None] * (blocks - first))
        self.fresh[:0] = range(blocks - 1, first - 1, -1)

    def free(self) -> int:
        return len(self.fresh) + len(self.cached)

    def take(self) -> int:
        """A block to write on; the caller has made sure that there is one."""
        if self.fresh:
            block = self.fresh.pop()
        else:
            block, _ = self.cached.popitem(last=False)
            digest = self.digests[block]
            if digest is None:
                raise EngineError(f"Cached block {block} has no digest.")
            del self.by_digest[digest]
            self.digests[block] = None
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more table names a block whose content it knows."""
        if self.refs[block] == 0:
            del self.cached[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One table less names the block."""
        refs = self.refs[block] - 1
        if refs < 0:
            raise EngineError(f"Block {block} was freed twice.")
        self.refs[block] = refs
        if refs == 0:
            if self.digests[block] is None:
                self.fresh.append(block)
            else:
                self.cached[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Let others find a full block, unless an equal one is found already."""
        if digest not in self.by_digest:
            self.by_digest[digest] = block
            self.digests[block] = digest

    def evict(self, digest: bytes) -> bool:
        """Drop cached content that nobody uses; whether there was any."""
        block = self.by_digest.get(digest)
        if block is None or self.refs[block]:
            return False
        del self.by_digest[digest], self.cached[block]
        self.digests[block] = None
        self.fresh.append(block)
        return True

    def first_needed(self, tokens: int) -> int:
        """First table entry that the token at position ``tokens`` still looks at."""
        if self.window is None:
            return 0
        return max(0, tokens - self.window + 1) // BLOCK_TOKENS


class BlockManager:
    """Hands out blocks, finds prefixes, takes blocks back. Used by one thread.

    ``states`` is one spec per group, in ``ops.state_groups`` order.
    Raises UnsupportedError for a spec that has no blocks.
    """

    def __init__(
        self,
        states: Sequence[StateSpec],
        pools: Grower,
        *,
        prefix_cache: bool = True,
        key: bytes | None = None,
    ) -> None:
        self._groups = tuple(_Group(_window(spec)) for spec in states)
        self._pools = pools
        self._prefix_cache = prefix_cache
        self._key = os.urandom(16) if key is None else key
        self._live: dict[int, BlockTable] = {}
        self.releases = 0
        """Grows whenever blocks come back: a failed ``reserve`` may succeed after that."""
        for index, group in enumerate(self._groups):
            group.add(pools.blocks(index))

    # ------------------------------------------------------------ sequences

    @property
    def caching(self) -> bool:
        """Whether finished sequences leave their blocks for others."""
        return self._prefix_cache

    def open(self, salt: str = "", shared: bool = True) -> BlockTable:
        """An empty table; sequences with different salts never share blocks, nor does one that
        is not ``shared`` with any other."""
        root = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16, key=self._key)
        rows = tuple(array("i") for _ in self._groups)
        return BlockTable(
            root.digest(), rows, [0] * len(rows), shared=shared and self._prefix_cache
        )

    def match(self, table: BlockTable, tokens: array[int]) -> int:
        """Give an empty table the longest cached prefix of ``tokens``; its length in tokens.

        The prefix is whole blocks, valid in every group (a window group must still have the
        blocks that the next token looks at), and at least one token is left to compute.
        """
        if not table.shared:
            return 0
        hit = self._longest_hit(table, tokens, (len(tokens) - 1) // BLOCK_TOKENS)
        if hit == 0:
            return 0
        length = hit * BLOCK_TOKENS
        for index, group in enumerate(self._groups):
            first = group.first_needed(length)
            row = table.rows[index]
            row.extend([LET_GO] * first)
            for digest in table.digests[first:hit]:
                block = group.by_digest[digest]
                group.share(block)
                row.append(block)
            table.starts[index] = first
        table.registered = hit
        table.room = length
        self._live[id(table)] = table
        return length

    def next_digest(self, table: BlockTable, tokens: array[int], computed: int) -> bytes | None:
        """The digest of the block that a sequence computes next, if others could use it."""
        entry = computed // BLOCK_TOKENS
        if not table.shared or entry >= (len(tokens) - 1) // BLOCK_TOKENS:
            return None
        return self._digest(table, tokens, entry)

    def ahead(self, table: BlockTable, tokens: array[int], computed: int) -> bool:
        """Whether others have published a longer prefix of ``tokens`` than is ``computed``.

        Cheap when they have not: it looks at the next block first.
        """
        digest = self.next_digest(table, tokens, computed)
        if digest is None or not any(digest in group.by_digest for group in self._groups):
            return False
        most = (len(tokens) - 1) // BLOCK_TOKENS
        return self._longest_hit(table, tokens, most) * BLOCK_TOKENS > computed

    def reserve(self, table: BlockTable, tokens: int, near: int | None = None) -> bool:
        """Make room for the first ``tokens`` tokens; False, with nothing changed, if full.

        Window groups, which take blocks back as they go, get room for the first ``near``
        tokens only, if that is given.
        """
        if tokens <= table.room:
            return True
        need = blocks_for(tokens)
        soon = need if near is None else min(need, blocks_for(near))
        missing = [
            max(0, (need if group.window is None else soon) - len(row))
            for group, row in zip(self._groups, table.rows, strict=True)
        ]
        if not all(self._ensure(i, n) for i, n in enumerate(missing)):
            return False
        for group, row, n in zip(self._groups, table.rows, missing, strict=True):
            for _ in range(n):
                row.append(group.take())
        table.room = min(map(len, table.rows)) * BLOCK_TOKENS
        self._live[id(table)] = table
        return True

    def commit(self, table: BlockTable, tokens: array[int], computed: int) -> None:
        """The first ``computed`` tokens are in memory: publish full blocks, let old ones go."""
        if computed < table.due:
            return
        full = computed // BLOCK_TOKENS
        if table.shared:
            for entry in range(table.registered, full):
                digest = self._digest(table, tokens, entry)
                for group, row in zip(self._groups, table.rows, strict=True):
                    if row[entry] != LET_GO:
                        group.publish(row[entry], digest)
            table.registered = max(table.registered, full)
        table.due = (full + 1) * BLOCK_TOKENS
        for index, group in enumerate(self._groups):
            if group.window is not None:
                self._let_go(table, index, group.first_needed(computed))
                leaves = (table.starts[index] + 1) * BLOCK_TOKENS + group.window - 1
                table.due = min(table.due, leaves)

    def release(self, table: BlockTable) -> None:
        """Take back every block of the table, the last first, so that leaves are evicted first."""
        for index, group in enumerate(self._groups):
            row = table.rows[index]
            for entry in range(len(row) - 1, table.starts[index] - 1, -1):
                group.drop(row[entry])
            del row[:]
            table.starts[index] = 0
        table.registered = table.room = table.due = 0
        self._live.pop(id(table), None)
        self.releases += 1

    # ---------------------------------------------------- content from outside

    def least(self, tokens: int) -> list[int]:
        """For each group, how many of the last blocks of ``tokens`` tokens the next one needs."""
        return [blocks_for(tokens) - group.first_needed(tokens) for group in self._groups]

    def widen(self, table: BlockTable, tokens: array[int], most: int) -> None:
        """Give a matched table the blocks just before those that it holds, at most ``most`` in a
        group, as far as they are still cached."""
        for index, group in enumerate(self._groups):
            start = table.starts[index]
            for entry in range(start - 1, max(-1, start - 1 - most), -1):
                block = group.by_digest.get(self._digest(table, tokens, entry))
                if block is None:
                    break
                group.share(block)
                table.rows[index][entry] = block
                table.starts[index] = entry

    def adopt(self, table: BlockTable, tokens: int, counts: Sequence[int]) -> bool:
        """Give an empty table blocks for content that comes from elsewhere; False if full.

        ``tokens`` are whole blocks; group g gets the last ``counts[g]`` of them, at least those
        that ``least`` says. Once their bytes are written, ``commit`` and ``release`` leave them
        in the cache.
        """
        need = tokens // BLOCK_TOKENS
        if not all(self._ensure(i, count) for i, count in enumerate(counts)):
            return False
        for index, (group, count) in enumerate(zip(self._groups, counts, strict=True)):
            row = table.rows[index]
            row.extend([LET_GO] * (need - count))
            row.extend(group.take() for _ in range(count))
            table.starts[index] = need - count
        table.room = tokens
        self._live[id(table)] = table
        return True

    def forget(self, table: BlockTable, tokens: array[int]) -> int:
        """Drop the cached blocks of ``tokens`` that no sequence uses; how many tokens they held.

        ``table`` is an empty one with the sequence's salt.
        """
        dropped = 0
        for entry in range(len(tokens) // BLOCK_TOKENS - 1, -1, -1):
            digest = self._digest(table, tokens, entry)
            dropped += any([group.evict(digest) for group in self._groups])
        self.releases += 1
        return dropped * BLOCK_TOKENS

    # ----------------------------------------------------------------- views

    def use(self) -> tuple[GroupUse, ...]:
        """The state of every group."""
        return tuple(
            GroupUse(
                used=len(group.refs) - group.free(),
                cached=len(group.cached),
                present=len(group.refs),
                limit=self._pools.limit(index),
            )
            for index, group in enumerate(self._groups)
        )

    def clear_cache(self) -> None:
        """Forget all cached content."""
        for group in self._groups:
            for block in group.cached:
                group.digests[block] = None
            group.fresh.extend(group.cached)
            group.cached.clear()
            group.by_digest = {
                digest: block for digest, block in group.by_digest.items() if group.refs[block]
            }

    def check(self) -> None:
        """Raise EngineError unless every count and every map agrees with the live tables."""
        for index, group in enumerate(self._groups):
            self._check_group(index, group)

    # --------------------------------------------------------------- details

    def _digest(self, table: BlockTable, tokens: array[int], entry: int) -> bytes:
        digests = table.digests
        while len(digests) <= entry:
            start = len(digests) * BLOCK_TOKENS
            parent = digests[-1] if digests else table.root
            content = parent + tokens[start : start + BLOCK_TOKENS].tobytes()
            digests.append(blake2b(content, digest_size=16, key=self._key).digest())
        return digests[entry]

    def _longest_hit(self, table: BlockTable, tokens: array[int], most: int) -> int:
        best = 0
        runs = [0] * len(self._groups)
        for entry in range(most):
            digest = self._digest(table, tokens, entry)
            whole = True
            for index, group in enumerate(self._groups):
                found = digest in group.by_digest
                if not found and group.window is None:
                    return best
                runs[index] = runs[index] + 1 if found else 0
                needed = entry + 1 - group.first_needed((entry + 1) * BLOCK_TOKENS)
                whole = whole and runs[index] >= needed
            if whole:
                best = entry + 1
        return best

    def _ensure(self, index: int, blocks: int) -> bool:
        """Have ``blocks`` blocks to take. Up to half the limit memory grows rather than that
        cached content is lost; from there on only sequences make it grow."""
        group = self._groups[index]
        roomy = 2 * len(group.refs) < self._pools.limit(index)
        if len(group.fresh) < blocks and (roomy or group.free() < blocks):
            group.add(self._pools.grow(index, len(group.refs) + blocks - len(group.fresh)))
        return group.free() >= blocks

    def _let_go(self, table: BlockTable, index: int, first: int) -> None:
        row = table.rows[index]
        start = table.starts[index]
        for entry in range(start, min(first, len(row))):
            self._groups[index].drop(row[entry])
            row[entry] = LET_GO
            self.releases += 1
        table.starts[index] = max(start, min(first, len(row)))

    def _check_group(self, index: int, group: _Group) -> None:
        named = [0] * len(group.refs)
        writable: list[int] = []
        for table in self._live.values():
            row = table.rows[index]
            for entry, block in enumerate(row):
                if (block == LET_GO) != (entry < table.starts[index]):
                    raise EngineError(f"Group {index}: entry {entry} of a table is misplaced.")
                if block != LET_GO:
                    named[block] += 1
                    if entry >= table.registered:
                        writable.append(block)
        free = group.fresh + list(group.cached)
        if any(named[block] != 1 for block in writable):
            raise EngineError(f"Group {index}: a block that may be written is shared.")
        if named != group.refs:
            raise EngineError(f"Group {index}: reference counts differ from the tables.")
        if len(set(free)) != len(free) or any(group.refs[block] for block in free):
            raise EngineError(f"Group {index}: a block is free twice, or free and in use.")
        if len(free) + sum(1 for refs in group.refs if refs) != len(group.refs):
            raise EngineError(f"Group {index}: blocks were lost.")
        found = {block: digest for digest, block in group.by_digest.items()}
        held = {block: digest for block, digest in enumerate(group.digests) if digest is not None}
        if found != held or any(block not in found for block in group.cached):
            raise EngineError(f"Group {index}: the hash map and the blocks disagree.")
        if len(group.refs) != self._pools.blocks(index):
            raise EngineError(f"Group {index}: the pool has another number of blocks.")


def _window(spec: StateSpec) -> int | None:
    if isinstance(spec, Paged):
        return None
    if isinstance(spec, Window):
        return spec.window
    raise UnsupportedError("Recurrent layer state is not served by this version.")
