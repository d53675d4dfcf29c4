"""The blocks of one state group: who is used, who is kept for reuse, who is free.

A block is *used* (tables name it), *cached* (nobody does, but its content can be found) or
*fresh*. Content is found in two ways: full blocks by their digest; and, for a prompt that goes
another way within a block, all blocks that follow on the same one, by ``children``: a block that
is not full yet, or that parts from the prompt after some tokens, is good for a copy of its
beginning.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import EngineError

TOKEN_BYTES = 4
LOOKED_AT = 8
"""Most children of a block, the newest first, that a prompt's tail is compared with."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a block holds: token ids as int32 bytes, after those that ``parent`` is the digest of.
    ``digest`` is None if the block is not full, or if an equal one is found already."""

    parent: bytes
    tokens: bytes
    digest: bytes | None = None


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

    def cut(self, group: int, blocks: int) -> None:
        """Give all but the first ``blocks`` back."""
        ...

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one block's bytes onto another."""
        ...


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How many blocks of a group are named by sequences, kept for reuse, there, and allowed."""

    used: int
    cached: int
    present: int
    limit: int


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
    private: bool = False
    """Whether it has a salt: what it holds is written nowhere."""
    marks: list[int] = field(default_factory=list[int])
    """Numbers of blocks after which a window is worth keeping."""


class Group:
    """The blocks of one state group. ``window`` None: every token is looked at for ever."""

    __slots__ = ("by_digest", "cached", "children", "contents", "fresh", "refs", "window")

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.refs: list[int] = []
        self.contents: list[Content | None] = []
        self.fresh: list[int] = []
        self.cached: OrderedDict[int, None] = OrderedDict()
        """The least recently used first."""
        self.by_digest: dict[bytes, int] = {}
        self.children: dict[bytes, list[int]] = {}

    # ------------------------------------------------------------- how many

    def add(self, blocks: int) -> None:
        """Take over newly grown blocks, the lowest numbers to be used first."""
        first = len(self.refs)
        self.refs.extend([0] * (blocks - first))
        self.contents.extend([None] * (blocks - first))
        self.fresh[:0] = range(blocks - 1, first - 1, -1)

    def shrink(self, blocks: int, copy: Callable[[int, int], None]) -> int:
        """Let go of the highest numbers, down to ``blocks`` if nothing in use is above; how many
        there are then. Of what is cached the least recent is lost; the rest moves down (``copy``
        from, to)."""
        used = (block for block in range(len(self.refs) - 1, -1, -1) if self.refs[block])
        blocks = min(len(self.refs), max(blocks, next(used, -1) + 1))
        room = blocks - sum(1 for refs in self.refs[:blocks] if refs)
        while len(self.cached) > room:
            self.fresh.append(self._evict_first())
        self.fresh = sorted((block for block in self.fresh if block < blocks), reverse=True)
        moves = {block: self.fresh.pop() for block in self.cached if block >= blocks}
        for block, target in moves.items():
            copy(block, target)
            self._move(block, target)
        self.cached = OrderedDict((moves.get(block, block), None) for block in self.cached)
        del self.refs[blocks:], self.contents[blocks:]
        return blocks

    def free(self) -> int:
        """Blocks that can be taken."""
        return len(self.fresh) + len(self.cached)

    # ---------------------------------------------------------------- use

    def take(self) -> int:
        """A block to write on; the caller has made sure that there is one."""
        block = self.fresh.pop() if self.fresh else self._evict_first()
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more table names a block whose content it knows."""
        if self.refs[block] == 0:
            del self.cached[block]
        self.refs[block] += 1

    def drop(self, block: int, wanted: bool = True) -> None:
        """One table less names the block. If it is not ``wanted`` it is the next to be evicted."""
        refs = self.refs[block] - 1
        if refs < 0:
            raise EngineError(f"Block {block} was freed twice.")
        self.refs[block] = refs
        if refs == 0:
            if self.contents[block] is None:
                self.fresh.append(block)
            else:
                self.cached[block] = None
                if not wanted:
                    self.cached.move_to_end(block, last=False)

    # ------------------------------------------------------------ content

    def find(self, digest: bytes, tokens: bytes) -> int | None:
        """The block with that content. The tokens are compared too: no digest is trusted."""
        block = self.by_digest.get(digest)
        if block is None:
            return None
        content = self.contents[block]
        return block if content is not None and content.tokens == tokens else None

    def tail(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """The block after ``parent`` that begins most like ``tokens``; how many agree."""
        best, most = -1, 0
        for block in self.children.get(parent, ())[: -LOOKED_AT - 1 : -1]:
            content = self.contents[block]
            if content is not None and (common := _common(content.tokens, tokens)) > most:
                best, most = block, common
        return best, most

    def whole_tails(self, parent: bytes, tokens: bytes) -> dict[int, int]:
        """The blocks after ``parent`` that hold a beginning of ``tokens`` and no more, by its
        length in tokens."""
        found: dict[int, int] = {}
        for block in self.children.get(parent, ()):
            content = self.contents[block]
            if content is not None and tokens.startswith(content.tokens):
                found[len(content.tokens) // TOKEN_BYTES] = block
        return found

    def publish(self, block: int, content: Content) -> None:
        """Let others find a block. One that is full is not told twice."""
        if content.digest in self.by_digest:
            self._forget(block)
            return
        old = self.contents[block]
        if old is None or old.parent != content.parent:
            self._forget(block)
            self.children.setdefault(content.parent, []).append(block)
        self.contents[block] = content
        if content.digest is not None:
            self.by_digest[content.digest] = block

    def known(self, content: Content) -> bool:
        """Whether the tokens of a block that is not full can be found already."""
        return any(
            (other := self.contents[block]) is not None and other.tokens.startswith(content.tokens)
            for block in self.children.get(content.parent, ())[-LOOKED_AT:]
        )

    def evict(self, digest: bytes) -> bool:
        """Drop cached content that nobody uses; whether there was any."""
        block = self.by_digest.get(digest)
        if block is None or self.refs[block]:
            return False
        self._drop_cached(block)
        return True

    def evict_tails(self, parent: bytes) -> None:
        """Drop the blocks after ``parent`` that are not full and that nobody uses."""
        for block in list(self.children.get(parent, ())):
            content = self.contents[block]
            if content is not None and content.digest is None and not self.refs[block]:
                self._drop_cached(block)

    def clear(self) -> None:
        """Drop all content that nobody uses."""
        while self.cached:
            self.fresh.append(self._evict_first())

    def first_needed(self, tokens: int) -> int:
        """First table entry that the token at position ``tokens`` still looks at."""
        if self.window is None:
            return 0
        return max(0, tokens - self.window + 1) // BLOCK_TOKENS

    def faults(self, named: list[int]) -> Iterator[str]:
        """What is wrong with the counts and maps, given how many tables name each block."""
        free = self.fresh + list(self.cached)
        if named != self.refs:
            yield "reference counts differ from the tables"
        if len(set(free)) != len(free) or any(self.refs[block] for block in free):
            yield "a block is free twice, or free and in use"
        if len(free) + sum(1 for refs in self.refs if refs) != len(self.refs):
            yield "blocks were lost"
        held = {
            content.digest: block
            for block, content in enumerate(self.contents)
            if content is not None and content.digest is not None
        }
        born = {
            (content.parent, block)
            for block, content in enumerate(self.contents)
            if content is not None
        }
        told = [(parent, block) for parent, blocks in self.children.items() for block in blocks]
        if held != self.by_digest or sorted(born) != sorted(told):
            yield "the maps and the blocks disagree"
        if any(self.contents[block] is None for block in self.cached):
            yield "a cached block holds nothing"
        if any(self.contents[block] is not None for block in self.fresh):
            yield "a fresh block holds something"

    # ------------------------------------------------------------- details

    def _evict_first(self) -> int:
        block, _ = self.cached.popitem(last=False)
        self._forget(block)
        return block

    def _drop_cached(self, block: int) -> None:
        del self.cached[block]
        self._forget(block)
        self.fresh.append(block)

    def _forget(self, block: int) -> None:
        """Nobody finds the block any more."""
        content = self.contents[block]
        if content is None:
            return
        self.contents[block] = None
        siblings = self.children[content.parent]
        siblings.remove(block)
        if not siblings:
            del self.children[content.parent]
        if content.digest is not None:
            del self.by_digest[content.digest]

    def _move(self, block: int, target: int) -> None:
        """Cached content has been copied to a fresh block."""
        content = self.contents[block]
        if content is None:
            raise EngineError(f"Cached block {block} holds nothing.")
        self.contents[block], self.contents[target] = None, content
        siblings = self.children[content.parent]
        siblings[siblings.index(block)] = target
        if content.digest is not None:
            self.by_digest[content.digest] = target


def _common(left: bytes, right: bytes) -> int:
    """Tokens that two contents have in common from the start."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length // TOKEN_BYTES
    for at in range(0, length, TOKEN_BYTES):
        if left[at : at + TOKEN_BYTES] != right[at : at + TOKEN_BYTES]:
            return at // TOKEN_BYTES
    return length // TOKEN_BYTES


def locate(groups: Sequence[Group], digest: bytes) -> list[int | None] | None:
    """See ``BlockManager.locate``."""
    blocks = [group.by_digest.get(digest) for group in groups]
    lost = any(
        block is None and group.window is None for group, block in zip(groups, blocks, strict=True)
    )
    return None if lost or all(block is None for block in blocks) else blocks


def reach(groups: Sequence[Group], hit: int, found: Sequence[frozenset[int]]) -> int:
    """See ``BlockManager.reach``."""
    best = hit
    runs = [hit] * len(groups)
    for entry, there in enumerate(found, hit):
        for index, group in enumerate(groups):
            if index not in there and group.window is None:
                return best
            runs[index] = runs[index] + 1 if index in there else 0
        end = entry + 1
        if all(
            run >= end - group.first_needed(end * BLOCK_TOKENS)
            for run, group in zip(runs, groups, strict=True)
        ):
            best = end
    return best
