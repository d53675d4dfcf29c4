"""Parsers written as if the whole answer were there: scripts over a ``Reader``.

A script is a generator that reads characters and waits (yields) where the next one has not come
yet. It cannot see where the text was cut, so what it makes cannot depend on it.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from gristmill.types import CallDelta, Piece

T = TypeVar("T")
Script = Generator[None, None, T]

SPACE = " \t\r\n"
_ALPHABET = string.ascii_letters + string.digits


class MalformedError(Exception):
    """The text is no call after all. Never leaves the parsers."""


class Reader:
    """An answer's text as it comes, and what has been made of it.

    White space next to a call is neither content nor call. Text that is not taken by ``call`` is
    said as it is.
    """

    def __init__(self, new_id: Callable[[], str] | None = None) -> None:
        self._new_id = new_id or call_id
        self._text = ""
        self._at = 0
        self._start: int | None = None
        self._ended = False
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._space = ""
        self._spoken = False
        self._after_call = False
        self._calls: list[CallDelta] = []
        self._ids: set[str] = set()
        self.count = 0
        """Calls begun so far."""

    # ------------------------------------------------------------ reading

    def feed(self, text: str) -> None:
        """The next piece of the answer."""
        keep = self._at if self._start is None else self._start
        self._text = self._text[keep:] + text
        self._at -= keep
        self._start = None if self._start is None else 0

    def end(self) -> None:
        """No more comes."""
        self._ended = True

    def more(self) -> Script[bool]:
        """Waits for more text; False at the end of the answer."""
        size = len(self._text) - self._at
        while len(self._text) - self._at == size:
            if self._ended:
                return False
            yield
        return True

    def peek(self) -> Script[str]:
        """The next character, not taken; "" at the end."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def take(self) -> Script[str]:
        """The next character; MalformedError at the end."""
        char = yield from self.peek()
        if not char:
            raise MalformedError
        self._at += 1
        return char

    def untake(self) -> None:
        """Gives the character taken last back."""
        self._at -= 1

    def space(self) -> Script[None]:
        """Takes white space."""
        while (char := (yield from self.peek())) and char in SPACE:
            self._at += 1

    def follows(self, literal: str) -> Script[bool]:
        """Whether the text goes on with ``literal``; it is taken if so."""
        while True:
            there = self._text[self._at : self._at + len(literal)]
            if there == literal:
                self._at += len(literal)
                return True
            if not literal.startswith(there) or not (yield from self.more()):
                return False

    def expect(self, literal: str) -> Script[None]:
        """Takes ``literal``; MalformedError if something else is there."""
        if not (yield from self.follows(literal)):
            raise MalformedError

    def one_of(self, literals: Sequence[str]) -> Script[str | None]:
        """Takes the first of ``literals`` that the text goes on with. Give the longer of two
        that begin alike first."""
        for literal in literals:
            if (yield from self.follows(literal)):
                return literal
        return None

    def up_to(self, *ends: str, most: int = 256) -> Script[tuple[str, str]]:
        """Takes a short text (``most`` characters) and what ends it; gives both. MalformedError
        when it does not end."""
        parts: list[str] = []
        while len(parts) <= most:
            end = yield from self.one_of(ends)
            if end is not None:
                return "".join(parts), end
            parts.append((yield from self.take()))
        raise MalformedError

    def run(self, pattern: re.Pattern[str]) -> str:
        """Takes what ``pattern`` matches in the text that is there already. Only for patterns
        that are runs of single characters (``[^x]*``), which may be cut anywhere."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def until(self, marks: Sequence[str], emit: Callable[[str], None]) -> Script[str | None]:
        """Hands the text before the first of ``marks`` to ``emit`` as it comes, and takes the
        mark; None if the answer ends without one."""
        find = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        while True:
            found = find.search(self._text, self._at)
            # A longer mark may begin like this one and not be whole yet.
            if found and not self._longer(found[0], found.start(), marks):
                emit(self._text[self._at : found.start()])
                self._at = found.end()
                return found[0]
            stop = found.start() if found else len(self._text) - self._open(marks)
            emit(self._text[self._at : stop])
            self._at = stop
            if not (yield from self.more()):
                if found is not None:
                    self._at = found.end()
                    return found[0]
                emit(self._text[self._at :])
                self._at = len(self._text)
                return None

    def _longer(self, mark: str, at: int, marks: Sequence[str]) -> bool:
        rest = self._text[at:]
        return not self._ended and any(
            len(m) > len(rest) and m.startswith(rest) for m in marks if len(m) > len(mark)
        )

    def _open(self, marks: Sequence[str]) -> int:
        """Characters at the end of the text that may begin a mark."""
        longest = max(map(len, marks)) - 1
        for n in range(min(longest, len(self._text) - self._at), 0, -1):
            tail = self._text[-n:]
            if any(mark.startswith(tail) for mark in marks):
                return n
        return 0

    # ------------------------------------------- going back where it was no call

    def content_until(self, marks: Sequence[str]) -> Script[str | None]:
        """Says the text before the first of ``marks``, and takes the mark: what follows may
        turn out to be no call, then see ``back``. None at the end of the answer."""
        mark = yield from self.until(marks, self.say)
        if mark is not None:
            self.hold(len(mark))
        return mark

    def hold(self, back: int = 0) -> None:
        """Remembers the place ``back`` characters ago as the beginning of a possible call."""
        self._start = self._at - back

    def release(self) -> None:
        """What has been taken since ``hold`` is settled: it will not be looked at again."""
        self._start = None

    @property
    def held(self) -> bool:
        """Whether a possible call has begun and is not yet certain."""
        return self._start is not None

    def back(self, mark: str) -> None:
        """What was read is malformed. Before its ``call``: ``mark``, at its beginning, is content
        and all after it is looked at again. After its ``call``: what has been taken stays the
        call's, the rest is looked at as content."""
        if self._start is not None:
            self._at = self._start + len(mark)
            self._start = None
            self.say(mark)

    # ------------------------------------------------------------- making

    def think(self, text: str) -> None:
        """``text`` is reasoning (for formats that split it off themselves)."""
        if text:
            self._reasoning.append(text)

    def say(self, text: str) -> None:
        """``text`` is content."""
        body = text.rstrip(SPACE)
        if not body:  # only what is new is looked at: a model may write line ends without end
            self._space += text
            return
        body, self._space = self._space + body, text[len(body) :]
        if self._after_call and not self._spoken:
            body = body.lstrip(SPACE)
        self._content.append(body)
        self._spoken, self._after_call = True, False

    def call(self, name: str, given_id: str | None = None) -> None:
        """A call of ``name`` has begun: it is certain now, and told to the client."""
        self._start = None
        self._space = ""
        self._after_call = True
        if not given_id or given_id in self._ids:
            given_id = self._new_id()
        self._ids.add(given_id)
        self._calls.append(CallDelta(self.count, given_id, name))
        self.count += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call begun last."""
        if text:
            self._calls.append(CallDelta(self.count - 1, arguments=text))

    def piece(self) -> Piece:
        """What has been made since the last time."""
        if self._ended and not self._after_call and self._space:
            self._content.append(self._space)
            self._space = ""
        made = Piece("".join(self._reasoning), "".join(self._content), _joined(self._calls))
        self._reasoning, self._content, self._calls = [], [], []
        return made


class ScriptParser:
    """Runs a script over the pieces of one answer.

    The script's end is not the answer's: what comes after is content. It is called as
    ``script(reader)`` and must take all of the text that it can.
    """

    def __init__(
        self, script: Callable[[Reader], Script[None]], new_id: Callable[[], str] | None = None
    ) -> None:
        self.reader = Reader(new_id)
        self._script = _to_the_end(self.reader, script)

    def push(self, text: str) -> Piece:
        """What ``text`` has added."""
        self.reader.feed(text)
        next(self._script, None)
        return self.reader.piece()

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        self.reader.end()
        next(self._script, None)
        return self.reader.piece()


def _to_the_end(reader: Reader, script: Callable[[Reader], Script[None]]) -> Script[None]:
    try:
        yield from script(reader)
    except MalformedError:
        reader.back("")
    while (yield from reader.peek()):
        reader.say(reader.run(_ANYTHING))


_ANYTHING = re.compile(r"(?s).+")


def call_id() -> str:
    """A fresh id in OpenAI's form."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))


def _joined(deltas: Sequence[CallDelta]) -> tuple[CallDelta, ...]:
    """Neighbours of one call as one delta."""
    out: list[CallDelta] = []
    for delta in deltas:
        if out and out[-1].index == delta.index:
            out[-1] = replace(out[-1], arguments=out[-1].arguments + delta.arguments)
        else:
            out.append(delta)
    return tuple(out)
