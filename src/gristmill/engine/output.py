"""From chosen tokens to ``Delta``s: characters, stop strings, the end of an answer.

It runs on the engine's thread, so that a stop string ends its answer in the step that
completes it and nothing is computed past it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gristmill.backends.ops import Choice
from gristmill.engine.lines import Lines
from gristmill.text.stops import StopMatcher
from gristmill.types import Delta, FinishReason, Request, Timings, TokenLogprob


class Detokenizing(Protocol):
    """``text.detokenizer.Detokenizer``: whole characters as soon as they are whole."""

    def push(self, ids: Sequence[int], /) -> str:
        """The text that the next tokens complete."""
        ...

    def flush(self) -> str:
        """What is left, replacement characters for bytes that never became one."""
        ...


class Output:
    """The text side of answer ``index`` of a request, of at most ``limit`` tokens.

    ``eos`` are the model's end-of-sequence ids; they end the answer without text.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        limit: int,
        detokenizer: Detokenizing,
        eos: frozenset[int],
    ) -> None:
        params = request.sampling
        self._request = request
        self._marks = eos
        self._index = index
        self._limit = limit
        self._detokenizer = detokenizer
        self._eos = frozenset[int]() if params.ignore_eos else eos
        self._ends = self._eos | frozenset(params.stop_token_ids)
        self._matcher = StopMatcher(params.stop, params.include_stop) if params.stop else None
        self._lines: Lines | None = None
        self.generated = 0
        self.slot = -1
        """The number that ``Slots`` gave the answer."""
        self.several_lines = False
        """Whether a line break has been let out."""

    def push(
        self,
        choice: Choice,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None,
        complete: bool = False,
    ) -> Delta:
        """What the next token adds; its ``finish`` is set if it ends the answer.

        ``complete``: a constraint allows nothing after it.
        """
        token = choice.token
        self.generated += 1
        finish: FinishReason | None = None
        stopped_by: str | int | None = None
        ended = token in self._ends or (complete and token in self._marks)
        if ended:
            finish = "stop"
            stopped_by = token if token in self._ends and token not in self._eos else None
            shown = stopped_by is not None and self._request.sampling.include_stop
            text = self._detokenizer.push((token,)) if shown else ""
            text = self._rest(text)[0]
        else:
            text, stopped_by = self._match(self._detokenizer.push((token,)))
            if stopped_by is not None:
                finish = "stop"
            elif complete or self.generated >= self._limit:
                rest, stopped_by = self._rest("")
                text += rest
                finish = "stop" if complete or stopped_by is not None else "length"
        if finish is None:
            text, finish = self._watch(text)
        self.several_lines = self.several_lines or "\n" in text
        return Delta(
            self._request.id,
            self._index,
            (token,),
            text,
            self._logprobs(choice),
            prompt_logprobs,
            finish,
            stopped_by,
            slot=self.slot,
            complete=complete and not ended and finish == "stop" and stopped_by is None,
        )

    def end(
        self,
        finish: FinishReason,
        timings: Timings,
        error: str | None = None,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None,
    ) -> Delta:
        """The last delta of an answer that no token ended; held-back text comes with it."""
        return Delta(
            self._request.id,
            self._index,
            (),
            self._rest("")[0],
            (),
            prompt_logprobs,
            finish,
            None,
            timings,
            error,
            self.slot,
        )

    def _watch(self, text: str) -> tuple[str, FinishReason | None]:
        """What the lines of the text say: what of it is let out, and "length" if it ends here."""
        request = self._request
        if not request.indent and request.patience is None:
            return text, None
        if self._lines is None:
            self._lines = Lines(request.indent, request.patience)
        text, ended = self._lines.push(text)
        return text, "length" if ended else None

    def _match(self, text: str) -> tuple[str, str | None]:
        """Pass text through the stop matcher; stop strings count from ``min_tokens`` on."""
        if self._matcher is None or self.generated < self._request.sampling.min_tokens:
            return text, None
        return self._matcher.push(text)

    def _rest(self, text: str) -> tuple[str, str | None]:
        """``text`` and all that was held back, as the answer ends here."""
        text, stopped_by = self._match(text + self._detokenizer.flush())
        if self._matcher is not None and stopped_by is None:
            text += self._matcher.flush()
        return text, stopped_by

    def _logprobs(self, choice: Choice) -> tuple[TokenLogprob, ...]:
        if self._request.sampling.logprobs is None:
            return ()
        return (TokenLogprob(choice.token, choice.logprob, choice.top),)
