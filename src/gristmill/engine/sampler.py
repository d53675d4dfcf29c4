"""Glue between a step's logits and the back end's native sampling."""

from __future__ import annotations

from gristmill.backends.ops import F32, Backend, Choice, Chooser
from gristmill.engine.grammar.guide import U32
from gristmill.engine.scheduler import StepPlan
from gristmill.engine.sequence import Sequence
from gristmill.errors import EngineError
from gristmill.types import TokenLogprob


class Sampler:
    """Chooses the next tokens of a step and scores prompts."""

    def __init__(self, backend: Backend, vocab: int) -> None:
        self._backend = backend
        self._vocab = vocab

    def prepare(self, sequence: Sequence) -> None:
        """Give a sequence its sampling state, once. Raises GristmillError for bad parameters."""
        if sequence.chooser is None:
            request = sequence.request
            sequence.chooser = self._backend.chooser(
                request.sampling, sequence.seed, self._vocab, request.prompt
            )

    def run(self, logits: F32, plan: StepPlan) -> list[tuple[Sequence, Choice]]:
        """The chosen token of every span that is to have one. Prompt scores go to their owners."""
        asked: list[tuple[Sequence, int]] = []
        row = 0
        for span in plan.spans:
            sequence = span.sequence
            wanted = len(span.wanted)
            if wanted and sequence.scored is not None:
                self._score(sequence, sequence.scored, logits, row, wanted)
            row += wanted
            span.first = row - 1 - len(span.draft)
            if span.choose:
                asked.append((sequence, span.first))
        return self.choose(logits, asked)

    def choose(
        self, logits: F32, asked: list[tuple[Sequence, int]]
    ) -> list[tuple[Sequence, Choice]]:
        """The next token of each sequence, from the row of logits beside it."""
        choosers: list[Chooser] = []
        masks: list[U32 | None] = []
        for sequence, _ in asked:
            if sequence.chooser is None:
                raise EngineError(f"Request {sequence.request.id} has no sampling state.")
            choosers.append(sequence.chooser)
            masks.append(None if sequence.guide is None else sequence.guide.mask)
        if not asked:
            return []
        rows = [row for _, row in asked]
        banned = [sequence.banned_now() for sequence, _ in asked]
        masked = any(mask is not None for mask in masks)
        choices = self._backend.choose(logits, rows, choosers, banned, masks if masked else None)
        return [(sequence, choice) for (sequence, _), choice in zip(asked, choices, strict=True)]

    def _score(self, sequence: Sequence, top: int, logits: F32, row: int, count: int) -> None:
        """The log-probabilities of the next prompt tokens, from ``count`` rows at most."""
        first = len(sequence.prompt_logprobs)
        tokens = sequence.request.prompt[first : first + count]
        rows = range(row, row + len(tokens))
        choices = self._backend.logprobs(logits, rows, tokens, top) if tokens else []
        sequence.prompt_logprobs.extend(TokenLogprob(c.token, c.logprob, c.top) for c in choices)
