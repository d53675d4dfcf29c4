"""One answer as it grows: deltas in, reasoning and content out, the same streamed or whole."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gristmill.errors import EngineError, OverloadError
from gristmill.serve.bridge import Ticket
from gristmill.serve.metrics import Meter
from gristmill.serve.protocol import AnswerParser
from gristmill.serve.segments import Segments
from gristmill.types import (
    CallDelta,
    Delta,
    FinishReason,
    Piece,
    Progress,
    Timings,
    TokenLogprob,
)


class Part(NamedTuple):
    """What some deltas added to an answer. (A tuple: one is made for every token.)"""

    reasoning: str
    content: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    calls: tuple[CallDelta, ...] = ()
    progress: Progress | None = None
    """Of the prompt, where it was asked for: the answer has not begun."""


@dataclass
class Call:
    """A tool call of an answer; ``arguments`` are JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Answer:
    """One choice. Everything a reply needs, streamed or not, is read from here."""

    index: int
    prompt_tokens: int
    parser: AnswerParser | None = None
    reasoning: list[str] = field(default_factory=list[str])
    content: list[str] = field(default_factory=list[str])
    calls: list[Call] = field(default_factory=list["Call"])
    segments: Segments = field(default_factory=Segments)
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish: FinishReason | None = None
    stopped_by: str | int | None = None
    timings: Timings | None = None
    last_at: float | None = None
    first_at: float | None = None
    embedding: bytes | None = None
    slot: int = -1
    progress: Progress | None = None

    @property
    def generated(self) -> int:
        """Tokens generated so far, the one that ended the answer included."""
        counted = self.timings.generated_tokens if self.timings else 0
        return max(counted, len(self.tokens))

    @property
    def cached(self) -> int:
        """Tokens of the prompt that needed no computing, as far as the engine has told."""
        if self.timings is not None:
            return self.timings.cached_tokens
        return 0 if self.progress is None else self.progress.cached

    def feed(self, delta: Delta) -> Part:
        """Takes a delta in and says what it added."""
        self.slot = delta.slot
        self.progress = delta.progress or self.progress
        pieces = self._read(delta)
        piece = pieces[0] if len(pieces) == 1 else _joined(pieces)
        if piece.reasoning:
            self.reasoning.append(piece.reasoning)
        if piece.content:
            self.content.append(piece.content)
        for call in piece.calls:
            self._call(call)
        logprobs = _shown(delta)
        self.tokens.extend(delta.tokens)
        self.logprobs.extend(logprobs)
        self.segments.add(pieces, logprobs, len(delta.tokens))
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish is not None:
            self.finish, self.stopped_by = delta.finish, delta.stopped_by
            self.timings = delta.timings
            self.embedding = delta.embedding
            self.segments.end()
        return Part(
            piece.reasoning, piece.content, delta.tokens, logprobs, piece.calls, delta.progress
        )

    def _read(self, delta: Delta) -> Sequence[Piece]:
        """What the text of a delta turns out to be, and at the end all that was held back."""
        if self.parser is None:
            return (Piece(content=delta.text),)
        if delta.finish is None:
            return (self.parser.push(delta.text),)
        return (self.parser.push(delta.text), self.parser.flush())

    def _call(self, delta: CallDelta) -> None:
        if delta.index == len(self.calls):
            self.calls.append(Call(delta.id or "", delta.name or ""))
        self.calls[delta.index].arguments += delta.arguments


def _joined(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        "".join(piece.reasoning for piece in pieces),
        "".join(piece.content for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
    )


def _shown(delta: Delta) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of tokens with a text: not that of the one that ended the answer."""
    ended = delta.finish == "stop" and not (delta.complete or isinstance(delta.stopped_by, str))
    return delta.logprobs[:-1] if ended else delta.logprobs


@dataclass
class Group:
    """All answers of one HTTP request, by the engine request that computes them."""

    answers: list[Answer]
    bases: dict[str, int]
    """Engine request id → index of its first answer."""
    metrics: Meter
    started: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.finish is not None for answer in self.answers)

    def feed(self, delta: Delta) -> tuple[Answer, Part]:
        """Hands a delta to its answer. Raises when it says that the answer failed."""
        answer = self.answers[self.bases[delta.request_id] + delta.index]
        if delta.finish == "error":
            raise EngineError(delta.error or "The engine could not finish the answer.")
        if delta.finish == "abort":
            raise OverloadError(delta.error or "The answer was cut off: the server is closing.")
        part = answer.feed(delta)
        self._measure(answer, delta)
        return answer, part

    def _measure(self, answer: Answer, delta: Delta) -> None:
        now = time.monotonic()
        if delta.tokens:
            if answer.last_at is None:
                answer.first_at = now
                self.metrics.first_token(now - self.started)
            else:
                self.metrics.next_tokens(now - answer.last_at, len(delta.tokens))
            answer.last_at = now
        if delta.finish is not None:
            self.metrics.finished(delta.finish, now - self.started, delta.timings)

    async def whole(self, ticket: Ticket) -> None:
        """Waits until every answer is complete."""
        while not self.finished:
            for delta in await ticket.batch():
                self.feed(delta)


Write = Callable[[Answer, Part, bool], Sequence[object]]
"""Makes the chunks for a part; the flag says that the answer has ended with it."""


async def chunks(
    group: Group,
    ticket: Ticket,
    first: list[Delta],
    write: Write,
    keep_alive: float,
    ending: Callable[[Group], list[object]],
) -> AsyncIterator[list[object] | None]:
    """The chunks of a stream, batch by batch, and what it ends with; None where a sign of life
    is due."""
    batch = first
    while True:
        if not batch:
            yield None
        else:
            made: list[object] = []
            ended = False
            for delta in batch:
                answer, part = group.feed(delta)
                over = delta.finish is not None
                made.extend(write(answer, part, over))
                ended = ended or over
            yield made
            if ended and group.finished:
                break
        batch = await ticket.batch(keep_alive)
    last = ending(group)
    if last:
        yield last
