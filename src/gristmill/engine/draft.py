"""Guesses how an answer goes on, by what followed when its last tokens came before.

Code that is edited, a text that is quoted, a list in one form: much of such an answer has been
said already, mostly in the prompt. A guess costs nothing until it is tried: every token that is
chosen shows whether it was right, so how far the guesses of an answer can be trusted is known
before the first of them is tried, and goes on being known while none is.

How likely a guess is right depends most on how long the text has agreed with the earlier place, so
it is counted by that length: for the answer itself, and for all answers together, which is what a
new answer begins with.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

LEAST_MATCH = 2
"""Fewest tokens that must have come before in the same order."""

_CLASSES = 7
"""Classes of agreement: by the binary logarithm of the tokens that agree, 64 and more alike."""
_TRUST = 4.0
"""How many guesses of the answer itself weigh as much as what is known of all answers."""
_FADE = 0.97
"""What a guess weighs after the next one of the same class."""


class Odds:
    """How often guesses were right, by how many tokens agreed. Old ones count less."""

    __slots__ = ("_fade", "_hits", "_tries")

    def __init__(self, fade: float = _FADE, start: float = 0.0) -> None:
        self._fade = fade
        self._tries = [start] * _CLASSES
        self._hits = [start * min(0.9, 0.25 + 0.12 * each) for each in range(_CLASSES)]

    def count(self, agreed: int, right: bool) -> None:
        """A guess after ``agreed`` tokens that agree."""
        at = min(agreed.bit_length(), _CLASSES) - 1
        self._tries[at] = self._tries[at] * self._fade + 1.0
        self._hits[at] = self._hits[at] * self._fade + right

    def right(self, agreed: int, others: Odds) -> float:
        """How likely a guess is right, where ``others`` is what is known of all answers."""
        at = min(agreed.bit_length(), _CLASSES) - 1
        prior = others._hits[at] / max(1e-9, others._tries[at])
        return (self._hits[at] + _TRUST * prior) / (self._tries[at] + _TRUST)


class Lookup:
    """What one sequence has said, by every run of ``least`` tokens; and where its end came before.

    ``at`` is the token that the guess begins with, -1 for none; ``agreed`` tokens before it are
    those that the sequence ends with.
    """

    __slots__ = ("_known", "_least", "_odds", "_places", "_shared", "agreed", "at")

    def __init__(self, shared: Odds, least: int = LEAST_MATCH) -> None:
        self._least = least
        self._places: dict[tuple[int, ...], int] = {}
        self._known = 0
        self._odds = Odds()
        self._shared = shared
        self.at = -1
        self.agreed = 0

    def follow(self, tokens: array[int]) -> None:
        """Take in the tokens that are new, and count how the guesses at them did."""
        if self._known > len(tokens):  # the context was full: the sequence begins anew
            self._places.clear()
            self._known, self.at = 0, -1
        if not self._known:
            self._begin(tokens)
        for index in range(self._known, len(tokens)):
            self._take(tokens, index)
        self._known = len(tokens)

    def guess(self, tokens: array[int], most: int) -> list[int]:
        """At most ``most`` tokens that may come next. What repeats itself goes on doing so."""
        if self.at < 0 or most <= 0:
            return []
        found = tokens[self.at : self.at + most].tolist()
        period = len(tokens) - self.at
        while len(found) < most:
            found.append(found[-period])
        return found

    def chances(self, most: int) -> list[float]:
        """For each of ``most`` guessed tokens how likely it and all before it are right."""
        chances: list[float] = []
        chance = 1.0
        for agreed in range(self.agreed, self.agreed + most if self.at >= 0 else self.agreed):
            chance *= self._odds.right(agreed, self._shared)
            chances.append(chance)
        return chances

    def _begin(self, tokens: array[int]) -> None:
        """The prompt: where each run of tokens came last. The last run looks for its like."""
        before = max(0, len(tokens) - 1)
        runs = zip(*(tokens[start:before] for start in range(self._least)), strict=False)
        self._places.update(zip(runs, range(self._least, before + 1), strict=False))
        self._known = before

    def _take(self, tokens: array[int], index: int) -> None:
        if self.at >= 0:
            right = tokens[self.at] == tokens[index]
            self._odds.count(self.agreed, right)
            self._shared.count(self.agreed, right)
            self.at, self.agreed = (self.at + 1, self.agreed + 1) if right else (-1, 0)
        if index + 1 < self._least:
            return
        run = tuple(tokens[index + 1 - self._least : index + 1])
        place = self._places.get(run, -1)
        self._places[run] = index + 1
        if self.at < 0 and place >= 0:
            self.at = place
            self.agreed = _agreed(tokens, place, index + 1)


def _agreed(tokens: Sequence[int], left: int, right: int, most: int = 64) -> int:
    """How many tokens before ``left`` are those before ``right``."""
    count = 0
    while count < min(left, most) and tokens[left - count - 1] == tokens[right - count - 1]:
        count += 1
    return count
