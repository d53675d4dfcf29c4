"""Follows one answer's reasoning: where it begins, where it ends, when its budget is used up.

Marks are found in the bytes that tokens stand for, so it does not matter how a model spells
them; a mark that is forced is a run of tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Marks:
    """How a thought begins and ends. ``budget`` None is no bound."""

    opening: bytes
    closings: tuple[bytes, ...]
    inside: bool
    budget: int | None
    forced: tuple[int, ...]
    """Tokens that end the thought when the budget is used up."""
    door: tuple[int, ...]
    """Tokens that open a thought although a constraint awaits the answer; () keeps it shut."""
    shut: tuple[int, ...]
    """Banned after a thought was ended by force, so that the answer does not end it again."""


class Thought:
    """The reasoning of one answer. ``forced`` are the tokens that must come next."""

    def __init__(self, marks: Marks, spell: Callable[[int], bytes]) -> None:
        self._marks = marks
        self._spell = spell
        self._held: bytes = b""
        self._spent = 0
        self._cut = False
        self.state: Literal["before", "inside", "past"] = "before"
        self.forced: deque[int] = deque()
        if marks.inside:
            self._enter(b"")

    @property
    def bans(self) -> Sequence[int]:
        """Tokens that must not come now, by what has been forced."""
        return self._marks.shut if self._cut and self.state == "past" else ()

    @property
    def door(self) -> int | None:
        """The token that would open a thought now."""
        return self._marks.door[0] if self.state == "before" and self._marks.door else None

    def open(self) -> None:
        """The answer has chosen to think: the rest of the mark follows."""
        self.forced.extend(self._marks.door[1:])

    def end(self) -> None:
        """There is no thought (any more)."""
        self.state = "past"
        self._held = b""

    def accept(self, token: int) -> bytes:
        """The next token, while the state is not "past". What it holds beyond the thought."""
        if self.forced:
            self.forced.popleft()
        self._held += self._spell(token)
        if self.state == "before":
            return self._before()
        self._spent += 1
        return self._inside()

    def _before(self) -> bytes:
        text = self._held.lstrip()
        if text.startswith(self._marks.opening):
            return self._enter(text[len(self._marks.opening) :])
        if not self._marks.opening.startswith(text):
            self.end()
        return b""

    def _enter(self, rest: bytes) -> bytes:
        self.state = "inside"
        self._held = rest
        return self._inside()

    def _inside(self) -> bytes:
        found = [(self._held.find(mark), mark) for mark in self._marks.closings]
        ends = [at + len(mark) for at, mark in found if at >= 0]
        if ends:
            rest = self._held[min(ends) :]
            self.end()
            return rest
        longest = max(map(len, self._marks.closings))
        self._held = self._held[max(0, len(self._held) - longest + 1) :]
        budget = self._marks.budget
        if budget is not None and self._spent >= budget and not self._cut:
            self._cut = True
            self.forced.extend(self._marks.forced)
        return b""
