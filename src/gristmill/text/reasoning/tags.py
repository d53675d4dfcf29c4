"""Reasoning that stands between two tags, before the answer: most formats are this one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gristmill.text.reasoning.base import Format
from gristmill.types import Piece


@dataclass(frozen=True)
class Tags:
    """The tags of one format.

    ``thoughts``: pairs of a tag that opens a thought and those of which one closes it.
    ``answers``: pairs of tags that may enclose the answer after the thought; an empty first one
    was the thought's end. ``alone``: they may enclose an answer without a thought, too.
    ``ends``: texts of the answer that end a thought although nothing has closed it.
    """

    thoughts: tuple[tuple[str, tuple[str, ...]], ...]
    answers: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    ends: tuple[str, ...] = ()

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Every tag."""
        thoughts = [tag for first, last in self.thoughts for tag in (first, *last)]
        answers = [tag for pair in self.answers for tag in pair if tag]
        return tuple(dict.fromkeys([*thoughts, *answers, *self.ends]))

    def open_at(self, prompt: str) -> str | None:
        """The tag with which the prompt leaves the model inside a thought, if any."""
        prompt = prompt.rstrip()
        return next((tag for tag, _ in self.thoughts if prompt.endswith(tag)), None)

    def enclosed_at(self, prompt: str) -> str | None:
        """The tag that opens an answer, if the prompt ends with one."""
        prompt = prompt.rstrip()
        return next((tag for tag, _ in self.answers if tag and prompt.endswith(tag)), None)


def tagged(
    name: str, detect: Callable[[str], bool], tags: Tags, aliases: tuple[str, ...] = ()
) -> Format:
    """A format that is nothing but its tags."""
    opening, closing = tags.thoughts[0]
    return Format(
        name=name,
        detect=detect,
        parser=lambda prompt: TagParser(tags, prompt),
        opened=lambda prompt: tags.open_at(prompt) is not None,
        open=opening,
        close=closing[0],
        marks=tags.marks,
        aliases=aliases,
    )


class TagParser:
    """Splits one answer. Only what stands at its start is a thought: tags quoted later are text.

    White space at the borders of the thought belongs to neither part. Without a thought the
    answer is passed on untouched. A thought that never ends is all reasoning.
    """

    def __init__(self, tags: Tags, prompt: str = "") -> None:
        """``prompt``: its end, which may have begun the thought or the answer."""
        self._tags = tags
        self._state: Literal["start", "thought", "after", "enclosed", "answer"] = "start"
        self._held = ""
        self._empty = True
        """Whether the part that is being read (the thought, the enclosed answer) has no text."""
        self._repeatable = False
        self._closers: tuple[str, ...] = ()
        opened, enclosed = tags.open_at(prompt), tags.enclosed_at(prompt)
        if opened is not None:
            self._enter_thought(opened)
            self._repeatable = True
        elif enclosed is not None:
            self._enclose(enclosed)

    def push(self, text: str) -> Piece:
        """What ``text`` has added."""
        if self._state == "answer":
            return Piece(content=text)
        self._held += text
        reasoning: list[str] = []
        content: list[str] = []
        state = None
        while state != self._state:
            state = self._state
            if state == "start":
                self._start()
            elif state == "thought":
                reasoning.append(self._thought())
            elif state == "after":
                self._after()
            elif state == "enclosed":
                content.append(self._until())
            else:
                content.append(self._held)
                self._held = ""
        return Piece("".join(reasoning), "".join(content))

    def flush(self) -> Piece:
        """What was held back: an unfinished tag is the text it is."""
        held, self._held = self._held, ""
        if self._state == "thought":
            return Piece(self._spoken(held.rstrip()))
        if self._state == "after":
            return Piece(content=held.lstrip())
        if self._state == "enclosed":
            return Piece(content=self._spoken(held))
        return Piece(content=held)

    def _enter_thought(self, opening: str) -> None:
        closing = next(last for first, last in self._tags.thoughts if first == opening)
        self._state, self._closers = "thought", (*closing, *self._tags.ends)

    def _enclose(self, opening: str) -> None:
        closing = next(last for first, last in self._tags.answers if first == opening)
        self._state, self._closers, self._empty = "enclosed", (closing,), True

    def _start(self) -> None:
        """Look for an opening tag; anything else than white space before it is the answer."""
        thoughts = [first for first, _ in self._tags.thoughts]
        answers = [first for first, _ in self._tags.answers if first and self._tags.alone]
        found, waits = self._tag([*thoughts, *answers])
        if found in thoughts:
            self._enter_thought(found)
        elif found:
            self._enclose(found)
        elif not waits:
            self._state = "answer"

    def _tag(self, tags: Iterable[str]) -> tuple[str, bool]:
        """Takes the tag that what is held begins with, or says whether one may yet come."""
        text = self._held.lstrip()
        for tag in tags:
            if text.startswith(tag):
                self._held = text[len(tag) :]
                return tag, False
        return "", any(tag.startswith(text) for tag in tags)

    def _thought(self) -> str:
        """Reasoning that is certain."""
        if self._repeatable:  # a model may repeat the tag that its prompt has opened
            found, waits = self._tag([first for first, _ in self._tags.thoughts])
            if waits:
                return ""
            if found:
                self._enter_thought(found)
            self._repeatable = False
        return self._until()

    def _until(self) -> str:
        """Text before the first of the closing tags; one that may be coming, and the white space
        before it, wait. At the tag the state goes on."""
        found = re.search("|".join(map(re.escape, self._closers)), self._held)
        if found is not None:
            text = self._held[: found.start()].rstrip()
            kept = self._state == "thought" and found[0] in self._tags.ends
            self._held = self._held[found.start() if kept else found.end() :]
            if self._state == "enclosed":
                self._closers = ()
            self._state = "after"
            return self._spoken(text)
        keep = max(_tail(self._held, closer) for closer in self._closers)
        cut = len(self._held[: len(self._held) - keep].rstrip())
        text, self._held = self._held[:cut], self._held[cut:]
        return self._spoken(text)

    def _after(self) -> None:
        """After a thought, or after an enclosed answer (then ``_closers`` is empty)."""
        if self._closers and self._tags.answers:
            first = self._tags.answers[0][0]
            if not first:
                self._enclose("")
                return
            found, waits = self._tag([first for first, _ in self._tags.answers])
            if found:
                self._enclose(found)
                return
            if waits:
                return
        self._held = self._held.lstrip()
        if self._held:
            self._state = "answer"

    def _spoken(self, text: str) -> str:
        if self._empty:
            text = text.lstrip()
            self._empty = not text
        return text


def _tail(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that could begin ``tag``."""
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:n]):
            return n
    return 0
