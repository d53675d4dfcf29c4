"""An answer in the order it came: runs of reasoning, of text, and tool calls.

Dialects whose answers are lists of blocks (Anthropic's messages, OpenAI's responses) read them
from here, whole or while they grow, so that both are the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gristmill.types import Piece, TokenLogprob

Kind = Literal["reasoning", "content", "call"]


@dataclass
class Segment:
    """A run of an answer that is all of one kind.

    ``texts`` are its pieces as they came: text, or the arguments of the call ``id``, ``name``.
    """

    kind: Kind
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)


@dataclass
class Segments:
    """The runs of one answer so far. The last one may still grow; none before it does.

    Text that comes after a call is a run of its own. Within one piece reasoning comes first,
    then text, then calls.
    """

    all: list[Segment] = field(default_factory=list[Segment])
    reasoning_tokens: int = 0
    """Tokens of reasoning, its marks included."""
    _open: dict[int, Segment] = field(default_factory=dict[int, Segment])
    _unseen: int = 0
    _waiting: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob], tokens: int) -> None:
        """Takes in what a delta turned out to be.

        A token whose text is held back belongs to the run that its text comes in, or, when none
        comes any more, to the run that was open.
        """
        self._waiting.extend(logprobs)
        before = self.all[-1].kind if self.all else None
        thought = said = False
        for piece in pieces:
            said = said or bool(piece.reasoning or piece.content or piece.calls)
            if piece.reasoning:
                thought = True
                self._run("reasoning").texts.append(piece.reasoning)
                self._waiting.clear()
            if piece.content:
                run = self._run("content")
                run.texts.append(piece.content)
                run.logprobs.extend(self._waiting)
                self._waiting.clear()
            for call in piece.calls:
                if call.index not in self._open:
                    made = Segment("call", id=call.id or "", name=call.name or "")
                    self._open[call.index] = made
                    self.all.append(made)
                self._open[call.index].texts.append(call.arguments)
                self._waiting.clear()
        self._count(tokens, said, thought, before == "reasoning")

    def _count(self, tokens: int, said: bool, thought: bool, after_thought: bool) -> None:
        """Tokens that nothing is seen of are the marks of a thought beside them."""
        if not said:
            self._unseen += tokens
            return
        if thought or after_thought:
            self.reasoning_tokens += self._unseen
        if thought:
            self.reasoning_tokens += tokens
        self._unseen = 0

    def end(self) -> None:
        """The answer is complete."""
        if self.all and self.all[-1].kind == "content":
            self.all[-1].logprobs.extend(self._waiting)
        if self.all and self.all[-1].kind == "reasoning":
            self.reasoning_tokens += self._unseen
        self._unseen = 0
        self._waiting.clear()

    def _run(self, kind: Kind) -> Segment:
        if not self.all or self.all[-1].kind != kind:
            self.all.append(Segment(kind))
        return self.all[-1]


@dataclass
class Cursor:
    """How much of an answer's segments a stream has told."""

    segment: int = 0
    texts: int = 0
    logprobs: int = 0
    opened: bool = False
