"""Finding special tokens in text: the longest one at the leftmost place wins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PREFIX = 3
"""Characters by which a place in the text is taken for a candidate."""


class SpecialFinder:
    """Splits text at the special tokens of one set.

    A regular expression of all texts would try thousands of alternatives at every ``<`` of a
    vocabulary like Gemma's; so it only knows the distinct first characters, and a dictionary
    decides. Time is linear in the text.
    """

    def __init__(self, tokens: Iterable[tuple[str, int]]) -> None:
        self._ids = {text: token for text, token in tokens if text}
        prefixes = sorted({text[:_PREFIX] for text in self._ids}, key=len, reverse=True)
        self._candidate = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {c: sorted(ns, reverse=True) for c, ns in lengths.items()}

    def split(self, text: str) -> list[str | int]:
        """``text`` as an alternation of plain pieces (never empty) and token ids."""
        parts: list[str | int] = []
        done = 0
        for start, end in self.spans(text):
            if start > done:
                parts.append(text[done:start])
            parts.append(self._ids[text[start:end]])
            done = end
        if done < len(text):
            parts.append(text[done:])
        return parts

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where special tokens stand in ``text``: [start, end), in order, not overlapping."""
        at = 0
        while self._candidate and (match := self._candidate.search(text, at)):
            at = match.start()
            for length in self._lengths[text[at]]:
                if text[at : at + length] in self._ids:
                    yield at, at + length
                    at += length
                    break
            else:
                at += 1
