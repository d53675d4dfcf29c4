"""Compiles constraints for one model's vocabulary, and keeps the last ones.

The vocabulary is handed to llguidance at the first constraint: a tenth of a second for 50,000
tokens, almost one for 262,000. Compiling happens on one thread of its own, whose stack is large:
grammars are walked by recursion. All of it is bounded by llguidance's fuel, not by a clock; the
server puts a clock before it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from gristmill.engine.grammar.guide import Facts, Guide
from gristmill.engine.grammar.reasons import reason
from gristmill.engine.grammar.sources import source
from gristmill.engine.grammar.thought import Marks, Thought
from gristmill.errors import OverloadError, RequestError
from gristmill.types import Constraint, SamplingParams, Thinking

_MARK = re.compile(rb"<[^<>\s]+>|\[[A-Z_]+\]")
"""A token that is markup and nothing else."""

log = logging.getLogger("gristmill.grammar")

_SLICES = ("[a-zA-Z]{1,10}", "[ a-zA-Z0-9]{1,10}")
"""Groups of tokens that llguidance allows or forbids as one where it can, besides its own for
JSON. With these, masks of regular expressions of plain words take less than half the time."""

KEPT = 64
"""Compiled constraints that are kept."""
SLOWEST = 1.0
"""Seconds that the first mask may take; all others are bounded by llguidance's fuel."""
MOST_WAITING = 64
"""Constraints that wait to be compiled."""
STACK = 256 << 20
"""Bytes of address space for the compiling thread's stack; used only when touched."""


class Spelling(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Ids go from 0 to one less."""
        ...

    def piece(self, token: int) -> bytes:
        """The exact bytes a token stands for."""
        ...

    def hidden(self, token: int) -> bool:
        """Whether texts leave it out: it can match no text, either."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to ids."""
        ...


@dataclass(frozen=True)
class Recipe:
    """All that a request asks of its answers' tokens; each answer gets a guide of its own."""

    facts: Facts
    spelling: Spelling
    tokenizer: LLTokenizer | None
    matcher: LLMatcher | None
    marks: Marks | None

    def guide(self) -> Guide:
        """A guide at the start of an answer."""
        matcher = None if self.matcher is None else self.matcher.deep_copy()
        thought = None if self.marks is None else Thought(self.marks, self.spelling.piece)
        return Guide(self.facts, matcher, self.tokenizer, thought)


class Grammars:
    """Safe to use from several threads. ``vocab`` is the number of logits, padding included."""

    def __init__(self, spelling: Spelling, vocab: int, eos: frozenset[int]) -> None:
        self._spelling = spelling
        self._vocab = vocab
        self._facts = Facts(-(-vocab // 32), tuple(sorted(t for t in eos if 0 <= t < vocab)))
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None
        self._tokenizer: LLTokenizer | None = None
        self._limits = LLParserLimits(
            initial_lexer_fuel=1_000_000,  # a bound of 65,536 characters needs a third of it
            step_lexer_fuel=200_000,  # some 0.015 s of a step
            step_max_items=100_000,
            max_items_in_row=10_000,  # an object with a thousand optional properties needs 4,000
            max_lexer_states=100_000,  # 1 to 2 kB each
            max_grammar_size=500_000,
            verbose_errors=False,
        )

    def compile(self, constraint: Constraint) -> Future[LLMatcher]:
        """Have a constraint ready. The future raises RequestError for one that cannot be."""
        key = (constraint.kind, constraint.text)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                there: Future[LLMatcher] = Future()
                there.set_result(found)
                return there
            if self._waiting >= MOST_WAITING:
                raise OverloadError("Too many constraints are being compiled; try again later.")
            self._waiting += 1
            if self._pool is None:
                self._pool = _deep_thread()
            made = self._pool.submit(self._compile, key, constraint)
        made.add_done_callback(self._left)
        return made

    def _left(self, made: Future[LLMatcher]) -> None:
        del made
        with self._lock:
            self._waiting -= 1

    def recipe(self, params: SamplingParams) -> Recipe | None:
        """What these parameters ask of an answer's tokens, if anything. Raises RequestError."""
        constraint, thinking = params.constraint, params.thinking
        if constraint is None and (thinking is None or thinking.budget is None):
            return None
        matcher = None if constraint is None else self.compile(constraint).result()
        marks = None if thinking is None else self._marks(thinking, constraint is not None)
        if constraint is not None and constraint.after and thinking is None:
            closings = tuple(self._spelling.piece(token) for token in constraint.after)
            marks = Marks(b"", tuple(filter(None, closings)), True, None, (), (), ())
        return Recipe(self._facts, self._spelling, self._tokenizer, matcher, marks)

    def close(self) -> None:
        """Let the thread go."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------- compiling

    def _compile(self, key: tuple[str, str], constraint: Constraint) -> LLMatcher:
        """On the compiling thread."""
        with self._lock:
            found = self._kept.get(key)
        if found is not None:
            return found
        grammar = source(constraint, self._token_id, self._special)
        tokenizer = self._ready()
        began = perf_counter()
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=self._limits)
        self._check(matcher)
        log.debug("compiled a %s in %.3f s", constraint.kind, perf_counter() - began)
        with self._lock:
            self._kept[key] = matcher
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return matcher

    def _token_id(self, text: str) -> int | None:
        ids = self._encode(text)
        return ids[0] if len(ids) == 1 else None

    def _special(self, text: str) -> int | None:
        token = self._token_id(text)
        return token if token is not None and self._spelling.hidden(token) else None

    def _check(self, matcher: LLMatcher) -> None:
        """Raises RequestError for a grammar with a fault, or one that nothing can match."""
        if matcher.is_error():
            raise RequestError(f"The constraint cannot be honoured: {reason(matcher.get_error())}")
        began = perf_counter()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if perf_counter() - began > SLOWEST:
            raise RequestError("The constraint cannot be honoured: it is too slow to follow.")
        if matcher.is_error():
            raise RequestError(f"The constraint cannot be honoured: {reason(matcher.get_error())}")
        if not mask.any():
            raise RequestError("The constraint cannot be honoured: no text can match it.")

    def _ready(self) -> LLTokenizer:
        """The vocabulary in llguidance's form. On the compiling thread only."""
        if self._tokenizer is None:
            if not self._facts.eos:
                raise RequestError(
                    "This model has no end-of-sequence token, so that no constraint can end."
                )
            began = perf_counter()
            wrapped = TokenizerWrapper(_Vocabulary(self._spelling, self._vocab, self._facts.eos))
            self._tokenizer = LLTokenizer(
                wrapped,
                n_vocab=self._vocab,
                eos_token=list(self._facts.eos),
                slices=[*_SLICES, *LLTokenizer.general_slices()],
            )
            seconds = perf_counter() - began
            log.info("a vocabulary of %d tokens made ready in %.2f s", self._vocab, seconds)
        return self._tokenizer

    # ------------------------------------------------------------ thinking

    def _marks(self, thinking: Thinking, constrained: bool) -> Marks:
        forced = self._encode(thinking.forced or thinking.closing)
        closing = self._encode(thinking.closing)
        door = self._encode(thinking.opening) if thinking.opening else ()
        if not constrained or (
            len(door) > 1 and not _MARK.fullmatch(self._spelling.piece(door[0]))
        ):
            door = ()  # its first token could as well begin the answer itself
        return Marks(
            opening=thinking.opening.strip().encode(),
            closings=(thinking.closing.encode(),),
            inside=thinking.inside,
            budget=thinking.budget,
            forced=forced,
            door=door,
            shut=closing if len(closing) == 1 else (),
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = self._spelling.encode(text, add_special=False, parse_special=True)
        return tuple(token for token in ids if 0 <= token < self._vocab)


class _Vocabulary:
    """Our tokenizer as llguidance wants it."""

    def __init__(self, spelling: Spelling, vocab: int, eos: Sequence[int]) -> None:
        known = min(vocab, spelling.vocab_size)
        self._spelling = spelling
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        self.tokens = [spelling.piece(token) for token in range(known)]
        self.tokens += [b""] * (vocab - known)
        self.special_token_ids = [
            token for token in range(known) if spelling.hidden(token) or token in eos
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._spelling.encode(text, add_special=False, parse_special=False)


def _deep_thread() -> ThreadPoolExecutor:
    before = threading.stack_size(STACK)
    try:
        pool = ThreadPoolExecutor(1, thread_name_prefix="gristmill-grammar")
        started: Future[None] = pool.submit(_nothing)
    finally:
        threading.stack_size(before)
    started.result()
    return pool


def _nothing() -> None: ...
