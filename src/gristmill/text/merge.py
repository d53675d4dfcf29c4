"""Merging characters into tokens over whole text: SentencePiece by score, Gemma 4 by rank.

Both start from single characters and, again and again, join the neighbours whose join ranks
best (the leftmost of equals), until no neighbours join. Doing that over a whole prompt would be
slow here, so the text is first cut wherever no token can reach across; the pieces are then
independent, and most of them are words seen before.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gristmill.text.vocab import TokenType, Vocabulary

SPACE = "\u2581"
"""What SentencePiece vocabularies write for a space."""

_CACHE_PIECES = 1 << 16
_CACHE_LENGTH = 48
_LONG_PIECE = 24

Rank = Callable[[str, str], float | None]
"""How well two neighbours join (lower is earlier), or None."""


class Merger:
    """Plain text, spaces already written as U+2581, to ids.

    ``ids`` holds every text that may stand as a token, ``bytes_`` the ids of the 256 byte
    tokens (or None each) that spell what no token covers, ``unk`` what stands for a byte
    without a token (None: nothing does).
    """

    def __init__(
        self, ids: dict[str, int], rank: Rank, bytes_: list[int | None], unk: int | None
    ) -> None:
        self._ids = ids
        self._rank = rank
        self._bytes = bytes_
        self._unk = unk
        joined = "\0".join(ids)
        self._words = _word_starts(joined)
        self._pairs = np.unique(_neighbours(joined))
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``."""
        out: list[int] = []
        for word in self._words.split(text):
            if len(word) <= _LONG_PIECE:
                out += self._piece(word)
            else:
                for piece in self._cut(word):
                    out += self._piece(piece)
        return out

    def _cut(self, word: str) -> list[str]:
        """Cut a long piece between characters that are neighbours in no token."""
        pairs = _neighbours(word)
        at = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        cuts = np.flatnonzero(self._pairs[at] != pairs) + 1
        edges = [0, *cuts.tolist(), len(word)]
        return [word[a:b] for a, b in pairwise(edges)]

    def _piece(self, piece: str) -> list[int]:
        found = self._cache.get(piece)
        if found is None:
            found = self._merge(piece)
            if len(piece) <= _CACHE_LENGTH:
                if len(self._cache) >= _CACHE_PIECES:
                    self._cache.clear()
                self._cache[piece] = found
        return found

    def _merge(self, piece: str) -> list[int]:
        """Join by priority: a heap of candidate joins, stale ones recognised by their length."""
        if len(piece) == 1:
            return self._symbol(piece)
        parts: list[str] = list(piece)
        count = len(parts)
        before = list(range(-1, count - 1))
        after = [*range(1, count), -1]
        heap: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            rank = self._rank(parts[left], parts[right])
            if rank is not None:
                heapq.heappush(heap, (rank, left, right, len(parts[left]) + len(parts[right])))

        for i in range(count - 1):
            consider(i, i + 1)
        while heap:
            _, left, right, length = heapq.heappop(heap)
            if (
                not parts[left]
                or not parts[right]
                or len(parts[left]) + len(parts[right]) != length
            ):
                continue
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
                consider(left, after[left])
            if before[left] >= 0:
                consider(before[left], left)
        return [token for part in parts if part for token in self._symbol(part)]

    def _symbol(self, text: str) -> list[int]:
        token = self._ids.get(text)
        if token is not None:
            return [token]
        spelled = [self._bytes[byte] for byte in text.encode()]
        return [
            self._unk if byte is None else byte
            for byte in spelled
            if byte is not None or self._unk is not None
        ]  # type: ignore[misc]


def _word_starts(joined: str) -> re.Pattern[str]:
    """Where a space begins a new piece: after every character that no token has before one."""
    glued = set(re.findall(f"([^\0{SPACE}]){SPACE}", joined))
    inside = "".join(re.escape(char) for char in sorted(glued))
    return re.compile(f"(?<=[^{SPACE}{inside}])(?={SPACE})")


def _neighbours(text: str) -> npt.NDArray[np.uint64]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    return (codes[:-1] << np.uint64(32)) | codes[1:]


def _mergeable(vocab: Vocabulary) -> dict[str, int]:
    """Texts that plain text may become: never a control, an unknown or a byte token."""
    return vocab.ids_except(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)


def _byte_ids(vocab: Vocabulary) -> list[int | None]:
    return [vocab.ids.get(f"<0x{byte:02X}>") for byte in range(256)]


def by_score(vocab: Vocabulary) -> Merger:
    """SentencePiece's BPE: any two neighbours join whose text is a token; best score first."""
    ids, scores = _mergeable(vocab), vocab.scores

    def rank(left: str, right: str) -> float | None:
        token = ids.get(left + right)
        return None if token is None else -scores[token]

    return Merger(ids, rank, _byte_ids(vocab), vocab.unk)


def by_merges(vocab: Vocabulary) -> Merger:
    """BPE over raw characters: two neighbours join if the list of merges has them."""
    ranks = dict(zip(reversed(vocab.merges), range(len(vocab.merges) - 1, -1, -1), strict=True))

    def rank(left: str, right: str) -> float | None:
        return ranks.get(f"{left} {right}")

    return Merger(_mergeable(vocab), rank, _byte_ids(vocab), None)
