"""Splitting a model's reasoning from its answer: one small file per format.

A format's module has ``NAME``, ``detect(template_source)`` and a ``Parser``. A parser takes
text in pieces of any size; the joined results are the same however the text was cut.
"""

from __future__ import annotations

from typing import Protocol

from gristmill.errors import UsageError
from gristmill.text.reasoning import think
from gristmill.types import Piece


class Parser(Protocol):
    """Takes the pieces of one answer in order."""

    def push(self, text: str) -> Piece:
        """What ``text`` has added."""
        ...

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        ...


_FORMATS = {think.NAME: think}

NAMES = tuple(_FORMATS)
"""Every known format."""


def detect(template_source: str) -> str | None:
    """The name of the format that a chat template speaks, if any."""
    return next((name for name, m in _FORMATS.items() if m.detect(template_source)), None)


def parser(name: str, prompt: str = "") -> Parser:
    """A parser for one answer. ``prompt`` is the rendered prompt (its end is enough): it may
    have begun the reasoning already. Raises UsageError for an unknown name."""
    if name not in _FORMATS:
        raise UsageError(f"Unknown reasoning parser '{name}'; known are {', '.join(NAMES)}.")
    return _FORMATS[name].Parser(opened=_FORMATS[name].opened(prompt))
