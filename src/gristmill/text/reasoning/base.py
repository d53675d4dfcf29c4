"""What every format of reasoning is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gristmill.types import Piece


class Parser(Protocol):
    """Takes the pieces of one answer in order; the joined results do not depend on the cuts."""

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        ...

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        ...


@dataclass(frozen=True)
class Format:
    """How a family of models sets its reasoning off from its answer.

    ``detect`` looks at a chat template's source. ``parser`` makes a parser for one answer, given
    the end of its prompt. ``opened``: whether that prompt leaves the model inside its reasoning.
    ``open`` and ``close`` are the texts that begin and end it; writing ``close`` for a model that
    has thought enough makes it go on with its answer. ``marks`` are texts that the parser must
    see even where they are special tokens. ``aliases`` are other names, those of vLLM's
    ``--reasoning-parser`` among them. ``calls``: its parser tells of tool calls, too;
    ``close_before_calls`` is then what ends the reasoning where a call may follow.
    """

    name: str
    detect: Callable[[str], bool]
    parser: Callable[[str], Parser]
    opened: Callable[[str], bool]
    open: str
    close: str
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    calls: bool = False
    close_before_calls: str = ""
