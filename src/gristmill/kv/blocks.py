"""Which block of memory holds which tokens: integers only, no bytes.

A model's layers fall into state groups (``ops.state_groups``); each group has its own
numbered blocks of ``BLOCK_TOKENS`` tokens, and every sequence has one block table per group.
Entry ``i`` of a table is the block of tokens ``[32·i, 32·(i+1))``::

    tokens     0 ........ 31 | 32 ....... 63 | 64 ....... 95 | 96 ..
    full         block 7     |    block 2    |    block 9    |  block 4
    window         -1        |    block 0    |    block 3    |  block 5
                let go        `----------- still seen -----------'
    shared        yes             yes              yes          never: being written

A block is in one of three states (``groups``):

- *used*: ``refs > 0`` tables name it;
- *cached*: nobody names it, but its content can still be found; the least recently used is
  taken first when memory is short, so eviction costs nothing before it is needed. Sequences
  give their last blocks back first, so what others build on outlives what is built on it;
- *fresh*: nobody names it and it holds nothing worth finding.

Content is found by a chain of keyed hashes: a full block's digest covers its parent's digest
and its own token ids, so equal digests mean equal tokens from the first one on. The hash is
BLAKE2b with 128 bits and a key of this process; the tokens themselves are compared on every hit,
so only two salts could be confused, with odds of 2^-128. Only full blocks are ever shared, hence
a block that is being written has one owner. Where a prompt leaves what is known in the middle of
a block, ``copy_tail`` copies that block and the prompt goes on behind the tokens that agree.

A block of a ``Slot`` group is a state (see ``states``): found, shared and evicted like a window's
block, but only some entries of a table have one.

A window group lets blocks go as a sequence advances. Those at its ``marks`` (where its prompt
ends, where others' prompts went another way) are kept like a finished sequence's: a later turn
finds its window there. The others are the first to be evicted.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import EngineError
from gristmill.kv import states as recurrent
from gristmill.kv.groups import BlockTable, Content, Group, GroupUse, Grower, locate, reach
from gristmill.types import Slot, StateSpec, Window

LET_GO = -1
"""Table entry of a block that fell out of a window."""
LEAST_TAIL = 4
"""Fewest tokens that a block is copied for."""


def blocks_for(tokens: int) -> int:
    """Blocks that ``tokens`` tokens take."""
    return -(-tokens // BLOCK_TOKENS)


class BlockManager:
    """Hands out blocks, finds prefixes, takes blocks back. Used by one thread.

    ``states`` is one spec per group, in ``ops.state_groups`` order.
    """

    def __init__(
        self,
        states: Sequence[StateSpec],
        pools: Grower,
        *,
        prefix_cache: bool = True,
        key: bytes | None = None,
    ) -> None:
        self._groups = tuple(Group(_window(spec)) for spec in states)
        self._recurrent = tuple(i for i, spec in enumerate(states) if isinstance(spec, Slot))
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
            root.digest(),
            rows,
            [0] * len(rows),
            shared=shared and self._prefix_cache,
            private=bool(salt),
        )

    def match(self, table: BlockTable, tokens: array[int]) -> int:
        """Give an empty table the longest cached prefix of ``tokens``; its length in tokens.

        The prefix is whole blocks, valid in every group (a window group must still have the
        blocks that the next token looks at), and at least one token is left to compute.
        """
        if not table.shared:
            return 0
        hit, known = self._longest_hit(table, tokens, (len(tokens) - 1) // BLOCK_TOKENS)
        table.marks = [known] if known > hit else []
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
        return self._longest_hit(table, tokens, most)[0] * BLOCK_TOKENS > computed

    def copy_tail(self, table: BlockTable, tokens: array[int], computed: int) -> int:
        """Fill the block after a match from one that begins like it; how many tokens that gives.

        ``computed`` tokens are matched (whole blocks), and there is room for the next block. At
        least one token is left to compute.
        """
        entry = computed // BLOCK_TOKENS
        wanted = tokens[computed : min(computed + BLOCK_TOKENS, len(tokens) - 1)]
        if not table.shared or len(wanted) < LEAST_TAIL:
            return 0
        parent = self._parent(table, tokens, entry)
        found = [group.tail(parent, wanted.tobytes()) for group in self._groups]
        if self._recurrent:
            tails = [self._groups[i].whole_tails(parent, wanted.tobytes()) for i in self._recurrent]
            most = [n for i, (_, n) in enumerate(found) if i not in self._recurrent]
            count = recurrent.longest_whole(tails, most)
            for index, tail in zip(self._recurrent, tails, strict=True):
                found[index] = (tail.get(count, LET_GO), count)
        count = min(common for _, common in found)
        if count < LEAST_TAIL or not all(self._hold(table, i, [entry]) for i in self._recurrent):
            return 0
        for index, (block, _) in enumerate(found):
            self._pools.copy(index, block, table.rows[index][entry])
        for index in self._recurrent:
            self._let_go(table, index, entry)
        return count

    def reserve(self, table: BlockTable, tokens: int, near: int | None = None) -> bool:
        """Make room for the first ``tokens`` tokens; False, with nothing changed, if full.

        Window groups, which take blocks back as they go, get room for the first ``near``
        tokens only, if that is given.
        """
        if tokens <= table.room and not (self._recurrent and self._stateless(table, tokens)):
            return True
        need = blocks_for(tokens)
        soon = need if near is None else min(need, blocks_for(near))
        missing = [
            max(0, (need if group.window is None else soon) - len(row))
            for group, row in zip(self._groups, table.rows, strict=True)
        ]
        for index in self._recurrent:
            missing[index] = 0
        if not all(self._ensure(i, n) for i, n in enumerate(missing)):
            return False
        for i in self._recurrent:
            row, start = table.rows[i], table.starts[i]
            if not self._hold(table, i, recurrent.wanted(row, start, soon - 1, table.marks)):
                return False
        for group, row, n in zip(self._groups, table.rows, missing, strict=True):
            for _ in range(n):
                row.append(group.take())
        table.room = min(map(len, table.rows)) * BLOCK_TOKENS
        self._live[id(table)] = table
        return True

    def _stateless(self, table: BlockTable, tokens: int) -> bool:
        """Whether a state after so many tokens has no block to lie in."""
        entry, rows = (tokens - 1) // BLOCK_TOKENS, [table.rows[i] for i in self._recurrent]
        return any(entry >= len(row) or row[entry] == LET_GO for row in rows)

    def _hold(self, table: BlockTable, index: int, entries: Sequence[int]) -> bool:
        group, row, start = self._groups[index], table.rows[index], table.starts[index]
        ensure = partial(self._ensure, index)
        return recurrent.hold(group, row, start, table.marks, entries, ensure)

    def commit(self, table: BlockTable, tokens: array[int], computed: int) -> None:
        """The first ``computed`` tokens are in memory: publish full blocks, let old ones go."""
        if computed < table.due:
            return
        full = computed // BLOCK_TOKENS
        if table.shared:
            for entry in range(table.registered, full):
                content = self._content(table, tokens, entry, (entry + 1) * BLOCK_TOKENS)
                for group, row in zip(self._groups, table.rows, strict=True):
                    if row[entry] != LET_GO:
                        group.publish(row[entry], content)
            table.registered = max(table.registered, full)
        table.due = (full + 1) * BLOCK_TOKENS
        for index, group in enumerate(self._groups):
            if group.window is not None:
                self._let_go(table, index, group.first_needed(computed))
                leaves = (table.starts[index] + 1) * BLOCK_TOKENS + group.window - 1
                table.due = min(table.due, leaves)

    def note_tail(
        self, table: BlockTable, tokens: array[int], computed: int, last: bool = False
    ) -> None:
        """Let others copy the block that the first ``computed`` tokens end in, as far as it is
        filled; they do not change any more. A state does, so it is copied unless they are the
        ``last``."""
        entry, count = divmod(computed, BLOCK_TOKENS)
        if not table.shared or count < LEAST_TAIL or computed > table.room:
            return
        content = self._content(table, tokens, entry, computed)
        for index, (group, row) in enumerate(zip(self._groups, table.rows, strict=True)):
            if index not in self._recurrent:
                if not group.known(content):
                    group.publish(row[entry], content)
            elif count in group.whole_tails(content.parent, content.tokens):
                continue
            elif last:
                group.publish(row[entry], content)
            elif self._ensure(index, 1):
                copy = group.take()
                self._pools.copy(index, row[entry], copy)
                group.publish(copy, content)
                group.drop(copy)

    def mark(self, table: BlockTable, tokens: int) -> None:
        """Others' prompts are likely to go another way from about here: their windows are kept."""
        if tokens // BLOCK_TOKENS not in table.marks:
            table.marks.append(tokens // BLOCK_TOKENS)

    def release(self, table: BlockTable) -> None:
        """Take back every block of the table, the last first, so that leaves are evicted first."""
        for index, group in enumerate(self._groups):
            row = table.rows[index]
            for entry in range(len(row) - 1, table.starts[index] - 1, -1):
                if row[entry] != LET_GO:
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
                block = group.find(*self._key_of(table, tokens, entry))
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

    def keys(self, table: BlockTable, tokens: array[int], count: int) -> list[tuple[bytes, bytes]]:
        """The first ``count`` blocks of ``tokens``: their digests, and their tokens as bytes."""
        return [self._key_of(table, tokens, entry) for entry in range(count)]

    def locate(self, digest: bytes) -> list[int | None] | None:
        """The blocks of a digest, by groups; None if a group that needs all has lost it."""
        return locate(self._groups, digest)

    def reach(self, hit: int, found: Sequence[frozenset[int]]) -> int:
        """How many blocks a prefix of ``hit`` blocks can come to, if after it there are the blocks
        of these groups."""
        return reach(self._groups, hit, found)

    def extend(self, table: BlockTable, end: int) -> list[tuple[int, int, int]] | None:
        """Blocks for the content of a matched table's next entries up to ``end``, which comes from
        elsewhere: (group, entry, block) to be filled, then committed. None if there is no room."""
        firsts = [group.first_needed(end * BLOCK_TOKENS) for group in self._groups]
        counts = [end - max(first, len(row)) for first, row in zip(firsts, table.rows, strict=True)]
        if not all(self._ensure(i, count) for i, count in enumerate(counts)):
            return None
        places: list[tuple[int, int, int]] = []
        for index, (group, first) in enumerate(zip(self._groups, firsts, strict=True)):
            row = table.rows[index]
            self._let_go(table, index, first)
            row.extend([LET_GO] * (first - len(row)))
            table.starts[index] = max(table.starts[index], first)
            for entry in range(len(row), end):
                row.append(group.take())
                places.append((index, entry, row[entry]))
        table.room = end * BLOCK_TOKENS
        self._live[id(table)] = table
        return places

    def forget(self, table: BlockTable, tokens: array[int]) -> int:
        """Drop the cached blocks of ``tokens`` that no sequence uses; how many tokens they held.

        ``table`` is an empty one with the sequence's salt.
        """
        dropped = 0
        for entry in range(len(tokens) // BLOCK_TOKENS - 1, -1, -1):
            digest = self._digest(table, tokens, entry)
            dropped += any([group.evict(digest) for group in self._groups])
            for group in self._groups:
                group.evict_tails(digest)
        for group in self._groups:
            group.evict_tails(table.root)
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
            group.clear()

    def shrink(self, blocks: Sequence[int]) -> bool:
        """Give memory back, down to so many blocks of each group as far as nobody uses those
        above; the least recent cached content is lost if need be. Whether there was any."""
        before = sum(map(self._pools.blocks, range(len(self._groups))))
        for index, group in enumerate(self._groups):
            self._pools.cut(index, group.shrink(blocks[index], partial(self._pools.copy, index)))
        return sum(map(self._pools.blocks, range(len(self._groups)))) < before

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

    def _key_of(self, table: BlockTable, tokens: array[int], entry: int) -> tuple[bytes, bytes]:
        start = entry * BLOCK_TOKENS
        return self._digest(table, tokens, entry), tokens[start : start + BLOCK_TOKENS].tobytes()

    def _parent(self, table: BlockTable, tokens: array[int], entry: int) -> bytes:
        return self._digest(table, tokens, entry - 1) if entry else table.root

    def _content(self, table: BlockTable, tokens: array[int], entry: int, end: int) -> Content:
        """What the block of table entry ``entry`` holds, filled with the tokens up to ``end``."""
        start = entry * BLOCK_TOKENS
        full = end - start == BLOCK_TOKENS
        digest = self._digest(table, tokens, entry) if full else None
        return Content(self._parent(table, tokens, entry), tokens[start:end].tobytes(), digest)

    def _longest_hit(self, table: BlockTable, tokens: array[int], most: int) -> tuple[int, int]:
        """The longest prefix that can be taken over, and the longest whose keys and values are
        known where every token is looked at: in blocks. They differ if windows are gone."""
        best = 0
        runs = [0] * len(self._groups)
        for entry in range(most):
            key = self._key_of(table, tokens, entry)
            whole = True
            for index, group in enumerate(self._groups):
                found = group.find(*key) is not None
                if not found and group.window is None:
                    return best, entry
                runs[index] = runs[index] + 1 if found else 0
                needed = entry + 1 - group.first_needed((entry + 1) * BLOCK_TOKENS)
                whole = whole and runs[index] >= needed
            if whole:
                best = entry + 1
        return best, most if any(group.window is None for group in self._groups) else best

    def _ensure(self, index: int, blocks: int) -> bool:
        """Have ``blocks`` blocks to take. Up to half the limit memory grows rather than that
        cached content is lost; from there on only sequences make it grow."""
        group = self._groups[index]
        roomy = 2 * len(group.refs) < self._pools.limit(index)
        if len(group.fresh) < blocks and (roomy or group.free() < blocks):
            group.add(self._pools.grow(index, len(group.refs) + blocks - len(group.fresh)))
        return group.free() >= blocks

    def _let_go(self, table: BlockTable, index: int, first: int) -> None:
        group, row = self._groups[index], table.rows[index]
        start, end = table.starts[index], min(first, len(row))
        if end <= start:
            return
        kept = {
            entry
            for mark in table.marks
            # One block more: the next prompt may part from this one a little before the mark.
            for entry in range(group.first_needed((mark - 1) * BLOCK_TOKENS), mark)
        }
        if index in self._recurrent:
            kept |= {entry for entry in range(start, end) if recurrent.is_checkpoint(entry, ())}
        for entry in range(start, end):
            if row[entry] != LET_GO:
                group.drop(row[entry], entry in kept)
                row[entry] = LET_GO
                self.releases += 1
        table.starts[index] = end

    def _check_group(self, index: int, group: Group) -> None:
        named = [0] * len(group.refs)
        writable: list[int] = []
        for table in self._live.values():
            row = table.rows[index]
            for entry, block in enumerate(row):
                sparse = index in self._recurrent and block == LET_GO
                if (block == LET_GO) != (entry < table.starts[index]) and not sparse:
                    raise EngineError(f"Group {index}: entry {entry} of a table is misplaced.")
                if block != LET_GO:
                    named[block] += 1
                    if entry >= table.registered:
                        writable.append(block)
        if any(named[block] != 1 for block in writable):
            raise EngineError(f"Group {index}: a block that may be written is shared.")
        for fault in group.faults(named):
            raise EngineError(f"Group {index}: {fault}.")
        if len(group.refs) != self._pools.blocks(index):
            raise EngineError(f"Group {index}: the pool has another number of blocks.")


def _window(spec: StateSpec) -> int | None:
    """How many tokens are looked at: all, a window, or (by way of the state after it) the last."""
    if isinstance(spec, Slot):
        return recurrent.LOOKS_BACK
    return spec.window if isinstance(spec, Window) else None
