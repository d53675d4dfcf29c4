"""What the server needs of the rooms beneath it, as protocols.

The command line hands in the real objects; the tests hand in small fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gristmill.types import Constraint, Piece, Pooling, Request, Sink, SlotView, Thinking


class HistogramView(Protocol):
    """``counts[i]`` observations above ``bounds[i - 1]`` and up to ``bounds[i]``; one count more
    than bounds, for those above all. ``total`` is the sum of what was observed."""

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds, ascending."""
        ...

    @property
    def counts(self) -> tuple[int, ...]:
        """Observations, not cumulative."""
        ...

    @property
    def total(self) -> float:
        """Sum of what was observed."""
        ...


class EngineStats(Protocol):
    """A snapshot of the engine's counters. The metrics page shows what more it tells."""

    @property
    def running(self) -> int:
        """Answers being computed."""
        ...

    @property
    def waiting(self) -> int:
        """Answers in line."""
        ...


class Engine(Protocol):
    """The engine's four methods. ``submit`` raises RequestError, ContextError, OverloadError."""

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request."""
        ...

    def abort(self, request_id: str) -> None:
        """Stop it within a step; unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot."""
        ...

    def close(self) -> None:
        """End."""
        ...


class Slots(Protocol):
    """The numbered slots of an engine. Its methods may take their time: not for the event loop."""

    @property
    def count(self) -> int:
        """Numbers go from 0 to one less."""
        ...

    def views(self) -> list[SlotView]:
        """All slots at one moment."""
        ...

    def save(self, slot: int, path: Path) -> tuple[int, int]:
        """What is cached of a slot's tokens, into a file: tokens and bytes written. Raises
        RequestError when that is nothing, OverloadError while it is busy, ResourceError."""
        ...

    def restore(self, slot: int, path: Path) -> tuple[int, int]:
        """A file's tokens, back into the cache: tokens and bytes read. Raises FormatError for a
        file that is none of this model's, OverloadError; nothing has changed then."""
        ...

    def erase(self, slot: int) -> int:
        """Drop what is cached of a slot's tokens; how many that were. Raises OverloadError."""
        ...

    def clear(self) -> None:
        """Drop everything that is cached and used by nobody."""
        ...


@runtime_checkable
class Resting(Protocol):
    """An engine that says when its thread lets others run: then is the time to wake them."""

    def at_rest(self, call: Callable[[], None]) -> None:
        """Have ``call`` made after deltas were handed out, before the engine computes or sleeps."""
        ...

    def give_way(self, on: bool) -> None:
        """While on, what it computes leaves room on its cores for other threads of the process."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """Ids go from 0 to one less."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Ids to text."""
        ...

    def piece(self, token: int) -> bytes:
        """The exact bytes a token stands for; none beyond the vocabulary."""
        ...

    def hidden(self, token: int) -> bool:
        """Whether texts leave it out."""
        ...

    def at_least(self, text: str) -> int:
        """A lower bound of a text's tokens, in no time."""
        ...


class AnswerParser(Protocol):
    """Splits an answer, fed piece by piece, into reasoning, content and tool calls."""

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        ...

    def flush(self) -> Piece:
        """What was held back, at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered chat: its ids, and how an answer to it begins.

    ``parser`` makes a fresh parser for one answer, or is None when all of it is content.
    """

    ids: tuple[int, ...]
    parser: Callable[[], AnswerParser] | None = None
    text: str = ""
    """What the template made, before it became ids."""
    thinking: Thinking | None = None
    """How its answer may think, whether or not that is split off."""
    constraint: Constraint | None = None
    """What the answer is held to by the tools that it must call."""
    shown: tuple[int, ...] = ()
    """Special tokens that ``parser`` must see."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """A chat as the client sent it, its fields checked; messages and tools are still raw JSON."""

    messages: Sequence[object]
    tools: Sequence[object] = ()
    """Checked (see ``tool_request``)."""
    must_call: tuple[str, ...] = ()
    """Names of tools of which one must be called; none: the model may do as it likes."""
    parallel: bool = True
    """Whether an answer may have several calls."""
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """What the template sees besides: ``enable_thinking``, ``documents``, …"""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    split_reasoning: bool | None = None
    """None: as the server was told."""
    inline_reasoning: bool | None = None
    """Whether the reasoning that is split off stays in the content, too."""
    most: int | None = None
    """Tokens beyond which the prompt would be refused anyway, so that nobody waits for it."""


class Infilling(Protocol):
    """``text.infill.Infill``: prompts for what stands between two texts."""

    def prompt(self, before: Sequence[int], after: Sequence[int], /) -> list[int]:
        """Ids of the text before and the text after to those of a prompt."""
        ...

    def prompt_within(
        self,
        before: Sequence[int],
        after: Sequence[int],
        extra: Sequence[tuple[str, str]],
        window: int,
        room: int,
        /,
    ) -> list[int]:
        """The same within bounds, with files (name, text) before it."""
        ...


@dataclass(frozen=True)
class Served:
    """One loaded model, ready to answer.

    ``chat`` renders and tokenises a chat (slow: call it off the event loop); it raises
    ``RequestError`` for messages the template refuses. It is None when the model has no
    template. ``defaults`` are sampling values the model's file suggests, by field name.
    """

    names: tuple[str, ...]
    engine: Engine
    tokenizer: Tokenizer
    chat: Callable[[ChatInput], Prompt] | None
    context: int
    created: int
    meta: Mapping[str, object] = field(default_factory=dict[str, object])
    defaults: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"])
    constrain: Callable[[Constraint], Future[Any]] | None = None
    """Has a constraint compiled, on a thread of its own. The future raises RequestError."""
    infill: Infilling | None = None
    """None where the vocabulary has no tokens for it."""
    slots: Slots | None = None
    props: Mapping[str, object] = field(default_factory=dict[str, object])
    """What ``/props`` says of the model: ``model_path``, ``chat_template``, …"""
    pooling: Pooling = "last"
    """How embeddings are pooled where a request does not say."""
    most_answers: int | None = None
    """What the engine takes at most, running and waiting."""
