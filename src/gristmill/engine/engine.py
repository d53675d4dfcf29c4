"""The engine: ``submit``, ``abort``, ``stats``, ``between``, ``close``, and one thread.

The thread sleeps while there is nothing to do. Each turn it takes what arrived, plans a step,
has it computed, chooses tokens and hands deltas to the sinks. Whatever goes wrong in it is
the end of the engine: everybody is told, ``on_failure`` is called, the process ends.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from gristmill.backends.ops import F32, Choice
from gristmill.engine.beams import Search, check_beams
from gristmill.engine.grammar import Masks, Recipe
from gristmill.engine.memory import Steward
from gristmill.engine.parts import Job, Parts, Scores
from gristmill.engine.prefixes import Prefixes
from gristmill.engine.sampler import Sampler
from gristmill.engine.scheduler import Scheduler, Span, StepPlan
from gristmill.engine.sequence import Sequence
from gristmill.engine.slots import Slots
from gristmill.engine.speculation import Speculator
from gristmill.engine.stats import Counters, Stats, snapshot
from gristmill.engine.step import Embedder, Stepper
from gristmill.engine.validate import check_request
from gristmill.errors import EngineError, GristmillError, OverloadError, RequestError
from gristmill.kv.blocks import BlockManager
from gristmill.kv.pools import Pools
from gristmill.types import (
    Delta,
    FinishReason,
    Request,
    Sink,
)

T = TypeVar("T")

log = logging.getLogger("gristmill.engine")

PATIENCE = 60.0
"""Seconds that a request waits for memory that others than this server use."""


class Engine:
    """Serves requests with one model, until closed or failed.

    ``on_failure`` is called once, on the thread that noticed, when the engine can no longer
    go on. ``check_idle`` checks every block count whenever there is nothing to do.
    """

    def __init__(
        self,
        parts: Parts,
        on_failure: Callable[[EngineError], None] | None = None,
        check_idle: bool = False,
    ) -> None:
        plan = parts.plan
        self._parts = parts
        self._plan = plan
        self._on_failure = on_failure
        self._check_idle = check_idle
        self._pools = Pools(parts.memory, plan.kv_blocks, room=parts.headroom)
        self._manager = BlockManager(
            plan.facts.states,
            self._pools,
            prefix_cache=plan.prefix_cache,
            key=None if parts.shelf is None else parts.shelf.key,
        )
        self._scheduler = Scheduler(
            self._manager, plan.max_running, plan.step_tokens, plan.slowdown
        )
        self._shelving = self._scheduler.shelving = parts.shelving(self._manager)
        self._steward = Steward(self._manager, self._pools, parts.headroom)
        self._stepper = Stepper(parts.program, len(plan.facts.states), plan.context)
        self._embedder = Embedder(parts.embedder, len(plan.facts.states), plan.context)
        self._sampler = Sampler(parts.backend, parts.vocab)
        self._masks = Masks()
        self._speculator = Speculator(self._manager, plan)
        self.slots = Slots(plan.max_running)
        """Touched by the engine's thread only: see ``between``."""
        self.prefixes = Prefixes(self._manager, parts.memory, self.slots)
        """The same."""
        self._counters = Counters()
        self._random = random.Random(plan.seed)
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._asked: set[Future[Any]] = set()
        self._jobs: dict[str, Job] = {}
        self._searches: dict[str, Search] = {}
        self._alive = 0
        self._arrivals = 0
        self._deadline: float | None = None
        self._over = False
        self._resting: tuple[Callable[[], None], ...] = ()
        self.failure: EngineError | None = None
        self.in_step = False
        """Whether the engine's thread is in a step, that is, ought to make progress."""
        self.last_progress = monotonic()
        """When the last step began or ended, in ``time.monotonic`` seconds."""
        self._thread = threading.Thread(target=self._run, name="gristmill-engine", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------- four methods

    def submit(self, request: Request, sink: Sink) -> None:
        """Take a request in; its deltas go to ``sink``, the last of each answer with ``finish``.

        Raises RequestError (ContextError) for what cannot be honoured, OverloadError when the
        line is full or the engine is closing, EngineError after a failure.
        """
        check_request(request, self._plan.context, self._parts.vocab)
        if request.beams:
            self._search(request, sink)
            return
        if request.pooling is not None and self._parts.embedder is None:
            raise RequestError("This engine makes no embeddings.")
        recipe = self._recipe(request)
        with self._wake:
            if self.failure is not None:
                raise EngineError(str(self.failure)) from self.failure
            if (self._deadline is not None and not request.part) or self._over:
                raise OverloadError("The server is shutting down.")
            if request.id in self._jobs:
                raise RequestError(f"A request with the id {request.id!r} is running.", "id")
            most = self._plan.max_running + self._plan.max_waiting
            if self._alive and self._alive + request.n > most and not request.part:
                raise OverloadError(
                    f"{self._alive} answers are running or waiting, the most is {most}; "
                    "try again later."
                )
            seed = request.sampling.seed
            seed = self._random.getrandbits(63) if seed is None else seed
            self._arrivals += 1
            arrival = self._arrivals
            if request.part:  # a search's later tokens have the place of its first
                search = self._searches.get(request.id.rpartition("/")[0])
                arrival = arrival if search is None else search.arrival
            job = Job(request, sink, monotonic(), seed, arrival, unborn=request.n)
            job.recipe = recipe
            self._jobs[request.id] = job
            self._alive += request.n
            self._inbox.append(partial(self._begin, job))
            self._wake.notify()

    def _search(self, request: Request, sink: Sink) -> None:
        """Take a beam search in: see ``beams``."""
        check_beams(request)
        params, parts = request.sampling, self._parts
        room = self._plan.context - len(request.prompt)
        eos = frozenset[int]() if params.ignore_eos else parts.eos
        search = Search(
            self,
            request,
            sink,
            eos | frozenset(params.stop_token_ids),
            room if params.max_tokens is None else min(room, params.max_tokens),
            parts.detokenizer,
            partial(self._searched, request.id),
        )
        with self._wake:
            if request.id in self._searches:
                raise RequestError(f"A request with the id {request.id!r} is running.", "id")
            self._searches[request.id] = search
            search.arrival = self._arrivals + 1
        try:
            search.begin()
        except BaseException:
            self._searched(request.id)
            raise

    def _searched(self, request_id: str) -> None:
        with self._wake:
            self._searches.pop(request_id, None)

    def abort(self, request_id: str) -> None:
        """Stop a request, running or waiting, before the next step. Unknown ids are ignored."""
        with self._wake:
            search = self._searches.get(request_id)
            if search is not None:
                self._inbox.append(search.abort)
                self._wake.notify()
            job = self._jobs.get(request_id)
            if job is not None:
                self._inbox.append(partial(self._drop, job, "abort", None))
                self._wake.notify()

    def between(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done on the engine's thread, between two steps: it must be short.

        The future has its result or what it raised; EngineError or OverloadError when the engine
        has ended.
        """
        future: Future[T] = Future()

        def run() -> None:
            self._asked.discard(future)
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        with self._wake:
            if self.failure is not None:
                raise EngineError(str(self.failure)) from self.failure
            if self._deadline is not None or self._over:
                raise OverloadError("The server is shutting down.")
            self._asked.add(future)
            self._inbox.append(run)
            self._wake.notify()
        return future

    def stats(self) -> Stats:
        """A snapshot of all counters."""
        stalled = monotonic() - self.last_progress if self.in_step else 0.0
        return snapshot(
            self._counters,
            self._scheduler,
            self._manager,
            self._pools,
            self._speculator.tally,
            self._plan,
            self._alive,
            stalled,
        )

    def close(self, drain_timeout: float = 0.0) -> None:
        """Take no more requests; let the rest finish within ``drain_timeout`` seconds, then
        tell it that it is over. Returns when the thread has ended (or hangs in a step)."""
        with self._wake:
            if self._deadline is None:
                self._deadline = monotonic() + drain_timeout
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            hung = self.failure is not None  # whoever failed ends at once, or never
            self._thread.join(1.0 if hung else drain_timeout + self._plan.step_timeout)

    def fail(self, error: EngineError) -> None:
        """Record that the engine cannot go on, and tell ``on_failure``: the first error only."""
        with self._wake:
            if self.failure is not None:
                return
            self.failure = error
        if self._on_failure is not None:
            self._on_failure(error)

    def at_rest(self, call: Callable[[], None]) -> None:
        """Have ``call`` made on the engine's thread whenever it is about to compute, or to sleep.

        A good moment to wake those who wait for deltas: woken by the first one of a step, they
        would take the interpreter's lock from the engine before it has handed out the last.
        """
        self._resting = (*self._resting, call)

    def give_way(self, on: bool) -> None:
        """See ``ops.Backend``. Called from any thread."""
        self._parts.backend.give_way(on)

    # ------------------------------------------------------ the engine's turn

    def _rest(self) -> None:
        for call in self._resting:
            call()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self._die(error)
        finally:
            self._masks.close()
            if self._shelving is not None:
                self._shelving.close()
            with self._wake:
                self._over = True
                asked, self._asked = self._asked, set()
            for future in asked:
                future.set_exception(self.failure or OverloadError("The server is shutting down."))

    def _turn(self) -> bool:
        """One round: commands, plan, step. False when the engine is closed."""
        for command in self._commands():
            command()
        if self._deadline is not None and (
            monotonic() >= self._deadline or not self._scheduler.busy
        ):
            return self._finish_closing()
        self._steward.tend(self._scheduler)
        plan = self._scheduler.plan()
        if self._scheduler.stuck is not None:
            self._give_up(self._scheduler.stuck)
        elif plan is not None:
            self._step(plan)
        elif self._scheduler.busy:
            raise EngineError("There are sequences, but none of them can be scheduled.")
        return True

    def _commands(self) -> list[Callable[[], None]]:
        """What arrived; sleeps as long as there is nothing at all to do."""
        with self._wake:
            if not self._scheduler.busy:
                self._rest()
            while not (self._inbox or self._scheduler.busy or self._deadline is not None):
                if self._check_idle:
                    self._manager.check()
                more = self._shelving is not None and self._shelving.tend()
                if not self._wake.wait(0.001 if more else self._steward.idle_for()) and not more:
                    break  # to look after the memory
            commands, self._inbox = self._inbox, []
            return commands

    def _finish_closing(self) -> bool:
        with self._wake:
            if self._inbox and self._deadline is not None and monotonic() < self._deadline:
                return True
            self._over = True
            self._inbox = []
            jobs = list(self._jobs.values())
        for job in jobs:
            self._drop(job, "abort", "The server is shutting down.")
        if self._check_idle:
            self._manager.check()
        self._rest()
        return False

    def _step(self, plan: StepPlan) -> None:
        self.last_progress = started = monotonic()
        self.in_step = True
        self._speculator.extend(plan)
        refused = self._prepare(plan)
        guided = [span for span in plan.spans if span.choose and span.sequence.guide is not None]
        self._masks.begin([span.sequence.guide for span in guided])
        self._rest()
        embedded = self._embedder.run(plan.embeds)
        choices: list[tuple[Sequence, Choice]] = []
        logits = self._stepper.run(plan.spans) if plan.spans else None
        self._counters.model_seconds += monotonic() - started
        stuck = self._collect(guided)
        if logits is not None:
            choices = self._sampler.run(logits, plan)
        self._scheduler.commit(plan)
        for job, error in refused:
            self._drop(job, "error", str(error))
        for sequence in stuck:
            self._break_off(sequence)
        now = monotonic()
        for span in plan.spans:
            if span.sequence.request.progress and span.sequence.generated == 0:
                self._report(span.sequence, now)
        for sequence, choice in choices:
            self._advance(sequence, choice, now)
        generated = len(choices) + (0 if logits is None else self._go_on(plan, logits, now))
        for span in plan.spans:
            if not span.choose and span.sequence.gap == 0:
                self._evaluated(span.sequence, now)
        for sequence in embedded:
            self._evaluated(sequence, now)
        if self._shelving is not None:
            self._shelving.tend()
        self._count(plan, generated, started)
        self.in_step = False

    def _count(self, plan: StepPlan, generated: int, started: float) -> None:
        counters = self._counters
        counters.steps += 1
        counters.step_sequences += len(plan.spans) + len(plan.embeds)
        counters.computed_tokens += plan.tokens
        counters.generated_tokens += generated
        counters.step_tokens.add(plan.tokens)
        self.last_progress = now = monotonic()
        counters.step_seconds.add(now - started)
        answers = sum(1 for span in plan.spans if span.known == 1)
        guessed = sum(len(span.draft) for span in plan.spans)
        self._scheduler.pace.observe(answers, plan.tokens - guessed, now - started)
        self._speculator.observe(plan, now - started)

    def _go_on(self, plan: StepPlan, logits: F32, now: float) -> int:
        """Choose on where guesses were right; how many tokens that makes."""
        going = drafted = [span for span in plan.spans if span.draft]
        right = dict.fromkeys(map(id, drafted), 0)
        generated = 0
        while going := [span for span in going if span.holds(right[id(span)])]:
            for span in going:
                right[id(span)] += 1
                self._scheduler.accept(span.sequence)
            guided = [span for span in going if span.sequence.guide is not None]
            self._masks.begin([span.sequence.guide for span in guided])
            stuck = self._collect(guided)
            for sequence in stuck:
                self._break_off(sequence)
            going = [span for span in going if span.sequence not in stuck]
            asked = [(span.sequence, span.first + right[id(span)]) for span in going]
            for sequence, choice in self._sampler.choose(logits, asked):
                self._advance(sequence, choice, now)
            generated += len(asked)
        for span in drafted:
            self._speculator.accepted(span, right[id(span)])
        return generated

    # ------------------------------------------------------------- sequences

    def _begin(self, job: Job) -> None:
        """Put the first answer of a new request into the line."""
        self._counters.requests += not job.request.part
        self._bear(job)

    def _bear(self, job: Job) -> None:
        """Put the next answer of a request into the line."""
        request = job.request
        sequence = job.bear(self._parts, self._manager.open(request.cache_salt, request.cache))
        self._scheduler.add(sequence)

    def _prepare(self, plan: StepPlan) -> list[tuple[Job, GristmillError]]:
        """Sampling states for those that choose their first token; whom the back end refused."""
        refused: list[tuple[Job, GristmillError]] = []
        for span in (*plan.spans, *plan.embeds):
            if span.sequence.output.slot < 0:
                self.slots.take(span.sequence)
            if span.choose and span.sequence.chooser is None:
                try:
                    self._sampler.prepare(span.sequence)
                except GristmillError as error:
                    span.choose = False
                    refused.append((self._jobs[span.sequence.request.id], error))
        return refused

    def _recipe(self, request: Request) -> Recipe | None:
        """What the request's constraint comes to. Compiles it, unless that was done before."""
        params, grammars = request.sampling, self._parts.grammars
        if grammars is not None:
            return grammars.recipe(params)
        if params.constraint is not None or params.thinking is not None:
            raise RequestError("This engine was given no grammars; it cannot hold to a constraint.")
        return None

    def _collect(self, guided: list[Span]) -> list[Sequence]:
        """Wait for the masks. Those whose constraint cannot be followed choose nothing."""
        self._masks.collect()
        stuck: list[Sequence] = []
        for span in guided:
            guide = span.sequence.guide
            if guide is not None and guide.error is not None:
                span.choose = False
                stuck.append(span.sequence)
        return stuck

    def _break_off(self, sequence: Sequence) -> None:
        """An answer's constraint cannot be followed: an error for this answer alone."""
        job = self._jobs.get(sequence.request.id)
        if job is not None and sequence.index in job.live and sequence.guide is not None:
            self._finish(job, sequence, "error", sequence.guide.error)

    def _advance(self, sequence: Sequence, choice: Choice, now: float) -> None:
        """A token was chosen: tell, and finish if that was the last one."""
        job = self._jobs.get(sequence.request.id)
        if job is None or sequence.index not in job.live:
            return  # a sink failed in this very step and took the request with it
        sequence.tokens.append(choice.token)
        clock = sequence.clock
        clock.last_token = now
        scores = None
        if clock.first_token is None:
            clock.first_token = now
            scores = self._prompt_done(job, sequence)
        guide = sequence.guide
        complete = guide is not None and guide.accept(choice.token)
        delta = sequence.output.push(choice, scores, complete)
        reason = delta.finish
        if reason is None and len(sequence.tokens) >= self._plan.context:
            self._scheduler.shift(sequence)
        if reason is not None:
            delta = replace(delta, timings=sequence.timings())
            self._end(job, sequence, reason)
        self._tell(job, delta)

    def _evaluated(self, sequence: Sequence, now: float) -> None:
        """The prompt is computed and no token was asked for."""
        job = self._jobs.get(sequence.request.id)
        if job is None or sequence.index not in job.live:
            return
        sequence.clock.first_token = sequence.clock.last_token = now
        scores = self._prompt_done(job, sequence)
        self._finish(job, sequence, "length" if sequence.pool is None else "stop", None, scores)

    def _report(self, sequence: Sequence, now: float) -> None:
        """Tell how far a prompt is."""
        job = self._jobs.get(sequence.request.id)
        if job is None or sequence.index not in job.live:
            return
        request, slot = sequence.request, sequence.output.slot
        progress = sequence.progress(now)
        self._tell(job, Delta(request.id, sequence.index, (), "", slot=slot, progress=progress))

    def _prompt_done(self, job: Job, sequence: Sequence) -> Scores | None:
        """Count a prompt; its other answers may start now. The prompt's scores, if wanted."""
        if not sequence.request.part:
            self._counters.prompt_tokens += sequence.prompt_tokens
        if sequence.request.sampling.prompt_logprobs is not None:
            job.scores = tuple(sequence.prompt_logprobs)
            self._scheduler.scores.keep(sequence)
        while job.unborn:
            self._bear(job)
        return job.scores

    def _finish(
        self,
        job: Job,
        sequence: Sequence,
        reason: FinishReason,
        error: str | None = None,
        scores: Scores | None = None,
    ) -> None:
        delta = sequence.output.end(reason, sequence.timings(), error, scores)
        if sequence.pool is not None and reason == "stop":
            delta = replace(delta, embedding=sequence.pool.result())
        self._end(job, sequence, reason)
        self._tell(job, delta)

    def _end(self, job: Job, sequence: Sequence, reason: FinishReason) -> None:
        """Forget a sequence; with the last one its request."""
        self.slots.leave(sequence)
        self._scheduler.remove(sequence)
        self._counters.finished[reason] += not job.request.part
        del job.live[sequence.index]
        with self._wake:
            self._alive -= 1
            if not job.live and not job.unborn:
                self._jobs.pop(job.request.id, None)

    def _drop(self, job: Job, reason: FinishReason, error: str | None) -> None:
        """End all answers of a request, born or not."""
        if self._jobs.get(job.request.id) is not job:
            return
        while job.unborn:
            self._bear(job)
        for sequence in list(job.live.values()):
            if sequence.index in job.live:
                self._finish(job, sequence, reason, error)

    def _give_up(self, sequence: Sequence) -> None:
        """Not even alone does this one find room: the machine has less than was planned. If that
        is because others use it just now, it may wait a while for them."""
        self._scheduler.stuck = None
        now = monotonic()
        if self._pools.held_back and self._scheduler.line.waited(sequence) < PATIENCE:
            with self._wake:
                if not self._inbox:
                    self._wake.wait(0.1)
            self.last_progress = now
            self._scheduler.retry()
            return
        job = self._jobs[sequence.request.id]
        self._drop(job, "error", "The machine has no memory left for this request's context.")

    def _tell(self, job: Job, delta: Delta) -> None:
        """Hand a delta on; a sink that fails has lost its request, nobody else has."""
        try:
            job.sink(delta)
        except Exception:
            log.exception("the receiver of request %s failed; it is aborted", job.request.id)
            self._drop(job, "abort", None)

    def _die(self, error: BaseException) -> None:
        """The engine failed: keep the cause, tell everybody."""
        cause = (
            error
            if isinstance(error, EngineError)
            else EngineError(f"The engine failed: {type(error).__name__}: {error}".rstrip(": "))
        )
        if cause is not error:
            cause.__cause__ = error
        log.error("the engine failed", exc_info=error)
        with self._wake:
            self._over = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        self.fail(cause)  # first: who is told of it must not find the server healthy
        for job in jobs:
            job.mourn(str(cause))
