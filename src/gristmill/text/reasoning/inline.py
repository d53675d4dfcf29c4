"""llama-server's ``deepseek-legacy``: the reasoning apart, and in the content as well."""

from __future__ import annotations

from gristmill.text.reasoning.base import Parser
from gristmill.types import Piece


class Inline:
    """Writes the reasoning that a parser splits off into the content, too, between tags.

    The tags are ``<think>`` and ``</think>`` whatever the model's own are, as llama-server has it.
    """

    def __init__(self, inner: Parser, apart: bool = True) -> None:
        """``apart``: it is told of as reasoning as well."""
        self._inner = inner
        self._apart = apart
        self._open = False

    def push(self, text: str) -> Piece:
        """What ``text`` has added."""
        return self._shown(self._inner.push(text))

    def flush(self) -> Piece:
        """What was held back, and the closing tag."""
        last = self._shown(self._inner.flush())
        end = "</think>" if self._open else ""
        return Piece(last.reasoning, last.content + end, last.calls)

    def _shown(self, piece: Piece) -> Piece:
        content = piece.content
        if self._open and not piece.reasoning and (content or piece.calls):
            content, self._open = "</think>" + content, False
        elif piece.reasoning:
            shown = piece.reasoning if self._open else "<think>" + piece.reasoning
            self._open = True
            if content or piece.calls:
                content, self._open = f"{shown}</think>{content}", False
            else:
                content = shown
        return Piece(piece.reasoning if self._apart else "", content, piece.calls)
