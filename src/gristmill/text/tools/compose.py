"""Parsers put together: reasoning before calls, and one call where several are not wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from gristmill.types import Piece


class Parser(Protocol):
    """Takes the pieces of one answer in order."""

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        ...

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        ...


class Both:
    """Splits off the reasoning, and looks for calls in what is left: what looks like a call
    within a thought is part of the thought."""

    def __init__(self, reasoning: Parser, calls: Parser) -> None:
        self._reasoning = reasoning
        self._calls = calls

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        return self._second(self._reasoning.push(text))

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        first = self._second(self._reasoning.flush())
        last = self._calls.flush()
        return replace(
            last,
            reasoning=first.reasoning + last.reasoning,
            content=first.content + last.content,
            calls=(*first.calls, *last.calls),
        )

    def _second(self, piece: Piece) -> Piece:
        if not piece.content:
            return piece
        found = self._calls.push(piece.content)
        return Piece(piece.reasoning + found.reasoning, found.content, (*piece.calls, *found.calls))


class FirstCall:
    """Passes on the first call of an answer and none after it (``parallel_tool_calls: false``)."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        return _first(self._parser.push(text))

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        return _first(self._parser.flush())


def _first(piece: Piece) -> Piece:
    return replace(piece, calls=tuple(call for call in piece.calls if call.index == 0))
