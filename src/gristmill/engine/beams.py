"""Beam search: the likeliest answers instead of drawn ones.

A search is made of requests for one token each, of all its beams at once, which tell the best
alternatives there. What beams have in common is in the prefix cache: the next request of a beam
takes over its blocks, and two beams that part within a block each have a copy of it. So one token
is computed for each beam and step, in whatever batch is just on its way.

Of every step the ``2 * beams`` likeliest continuations of each beam are looked at. One that ends
an answer is set aside; the ``beams`` likeliest others go on. An answer's score is the sum of its
tokens' log-probabilities divided by their number to the power of ``length_penalty``. The search
ends when no beam can come to a better score than the answers set aside, however it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Protocol

from gristmill.engine.output import Detokenizing
from gristmill.errors import GristmillError, RequestError
from gristmill.types import (
    Delta,
    FinishReason,
    Request,
    SamplingParams,
    Sink,
    Timings,
    TokenLogprob,
)


class Engine(Protocol):
    """What a search needs of an engine."""

    def submit(self, request: Request, sink: Sink, /) -> None:
        """See ``engine.Engine``."""
        ...

    def abort(self, request_id: str, /) -> None:
        """See ``engine.Engine``."""
        ...


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer so far. ``total`` is the sum of its log-probabilities."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    told: tuple[TokenLogprob, ...] = ()

    def score(self, penalty: float, length: int | None = None) -> float:
        """What it is ranked by; of ``length`` tokens, if that is given."""
        return self.total / (max(1, len(self.tokens)) if length is None else length) ** penalty

    def attainable(self, penalty: float, most: int) -> float:
        """No continuation of at most ``most`` tokens has a better score."""
        return self.score(penalty, most if penalty > 0 else None)


def check_beams(request: Request) -> None:
    """Raise RequestError for what a search, which draws nothing, cannot honour."""
    params, plain = request.sampling, SamplingParams()
    if request.n > request.beams:
        raise RequestError(f"n is {request.n}, more than the {request.beams} beams.", "n")
    for name in (
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "dry_multiplier",
        "stop",
        "min_tokens",
        "prompt_logprobs",
        "constraint",
        "thinking",
    ):
        if getattr(params, name) != getattr(plain, name):
            raise RequestError(f"A beam search cannot be had with {name}.", name)
    if params.max_tokens == 0:
        raise RequestError("A beam search needs at least one token.", "max_tokens")


class Search:
    """One request's search; its deltas come on the engine's thread, and so do its own requests.

    ``ends`` are the tokens that end an answer, ``most`` the tokens it may have, ``over`` is
    called when nothing more will come.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        sink: Sink,
        ends: frozenset[int],
        most: int,
        detokenizer: Detokenizer,
        over: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._request = request
        self._sink = sink
        self._ends = ends
        self._most = most
        self._detokenizer = detokenizer
        self._over = over
        self._beams: list[Beam] = [Beam()]
        self._done: list[tuple[Beam, int | None]] = []
        self._heard: dict[str, tuple[Beam, Delta]] = {}
        self._asked: dict[str, Beam] = {}
        self._steps = 0
        self._first: Timings | None = None
        self._began = monotonic()
        self.arrival = 0
        """The place in the line that all its tokens have."""
        self._told = False
        self._aborted = False

    def begin(self) -> None:
        """Ask for the first token. Raises what ``Engine.submit`` raises."""
        self._ask(self._beams[0], 0)

    def abort(self) -> None:
        """Stop: what is being computed is aborted, or its last deltas end the search."""
        self._aborted = True
        for name in list(self._asked):
            self._engine.abort(name)

    def _ask(self, beam: Beam, number: int) -> None:
        request, first = self._request, self._steps == 0
        name = f"{request.id}/{self._steps}.{number}"
        self._asked[name] = beam
        params = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=2 * request.beams, ignore_eos=True
        )
        self._engine.submit(
            replace(
                request,
                id=name,
                prompt=(*request.prompt, *beam.tokens),
                sampling=params,
                n=1,
                beams=0,
                progress=False,
                part=not first,
            ),
            self._hear,
        )

    def _hear(self, delta: Delta) -> None:
        if delta.finish is None or self._told:
            return
        if self._aborted or delta.finish in ("abort", "error"):
            self._fail("error" if delta.finish == "error" else "abort", delta.error)
            return
        self._first = self._first or delta.timings
        self._heard[delta.request_id] = (self._asked.pop(delta.request_id), delta)
        if not self._asked:
            self._step()

    def _step(self) -> None:
        """All beams have been heard of: choose among what they may become."""
        heard, self._heard = self._heard, {}
        width, penalty = self._request.beams, self._request.length_penalty
        self._steps += 1
        going: list[Beam] = []
        for beam, delta in heard.values():
            for token, logprob in delta.logprobs[0].top:
                told = (*beam.told, TokenLogprob(token, logprob, delta.logprobs[0].top))
                longer = Beam((*beam.tokens, token), beam.total + logprob, told)
                if token in self._ends:
                    self._done.append((longer, token))
                else:
                    going.append(longer)
        going.sort(key=lambda beam: -beam.total)
        self._done.sort(key=lambda each: -each[0].score(penalty))
        del going[width:], self._done[width:]
        self._beams = going
        best = max((beam.attainable(penalty, self._most) for beam in going), default=-inf)
        settled = len(self._done) == width and best <= self._done[-1][0].score(penalty)
        if self._steps >= self._most or settled:
            self._finish()
            return
        try:
            for number, beam in enumerate(going):
                self._ask(beam, number)
        except GristmillError as error:
            self._fail("error", str(error))

    def _finish(self) -> None:
        penalty = self._request.length_penalty
        answers: list[tuple[Beam, int | None, FinishReason]] = [
            (beam, token, "stop") for beam, token in self._done
        ]
        if self._steps >= self._most:
            answers.extend((beam, None, "length") for beam in self._beams)
        answers.sort(key=lambda each: -each[0].score(penalty))
        self._told = True
        self._over()
        for index, answer in enumerate(answers[: self._request.n]):
            self._sink(self._delta(index, *answer))

    def _delta(self, index: int, beam: Beam, end: int | None, finish: FinishReason) -> Delta:
        request, params = self._request, self._request.sampling
        stopped_by = end if end in params.stop_token_ids else None
        shown = beam.tokens
        if end is not None and not (stopped_by is not None and params.include_stop):
            shown = shown[:-1]
        detokenizer = self._detokenizer(params.skip_special_tokens, params.shown_tokens)
        told: tuple[TokenLogprob, ...] = ()
        if params.logprobs is not None:
            told = tuple(replace(each, top=each.top[: params.logprobs]) for each in beam.told)
        first = self._first or Timings()
        spent = monotonic() - self._began - first.queue_s - first.prefill_s
        return Delta(
            request.id,
            index,
            beam.tokens,
            detokenizer.push(shown) + detokenizer.flush(),
            told,
            finish=finish,
            stopped_by=stopped_by,
            timings=replace(first, decode_s=max(0.0, spent), generated_tokens=len(beam.tokens)),
        )

    def _fail(self, finish: FinishReason, error: str | None) -> None:
        self._told = True
        for name in list(self._asked):
            self._engine.abort(name)
        self._over()
        for index in range(self._request.n):
            self._sink(Delta(self._request.id, index, (), "", finish=finish, error=error))


Detokenizer = Callable[[bool, tuple[int, ...]], Detokenizing]
