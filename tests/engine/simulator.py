"""The real scheduler and block manager, with a fake clock and a model of what steps cost."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from gristmill.engine.line import PATIENCE, TURN
from gristmill.engine.output import Output
from gristmill.engine.scheduler import Scheduler, StepPlan
from gristmill.engine.sequence import Clock, Sequence
from gristmill.kv.blocks import BlockManager
from gristmill.types import Paged, Request, StateSpec
from tests.engine.fakes import ToyDetokenizer
from tests.kv.test_blocks import Counted


@dataclass(frozen=True)
class Cost:
    """Seconds of a step: reading the weights, a row's arithmetic, a row's look at its context."""

    weights: float = 0.020
    row: float = 0.0015
    seen: float = 1e-7

    def of(self, plan: StepPlan) -> float:
        seen = sum(span.count * (span.computed + span.count) for span in plan.spans)
        return self.weights + self.row * plan.tokens + self.seen * seen


@dataclass
class Arrival:
    """A request of the simulation: when it comes, and what was seen of it."""

    at: float
    prompt: Seq[int]
    answer: int
    client: str = ""
    priority: int = 0
    first: float = -1.0
    done: float = -1.0
    overdue_at: int = -1
    """Admissions when it had waited for ``PATIENCE`` seconds."""
    before: int = 0
    """How many older ones waited then."""


@dataclass
class Simulation:
    """Serves arrivals to the end. ``audit`` looks at every law after every step."""

    arrivals: list[Arrival]
    blocks: int = 400
    max_running: int = 32
    step_tokens: int = 256
    cost: Cost = Cost()
    states: Seq[StateSpec] = (Paged(1, 8),)
    audit: bool = True
    closed: int = 0
    """Users who each ask again when answered (``arrivals`` in order), or 0: by their times."""
    now: float = 0.0
    admissions: int = 0
    tokens: int = 0
    steps: list[tuple[int, int, float]] = field(default_factory=list[tuple[int, int, float]])
    """Answers, tokens, seconds of each step."""

    def __post_init__(self) -> None:
        self.manager = BlockManager(self.states, Counted([self.blocks] * len(self.states), 16))
        self.scheduler = Scheduler(
            self.manager, self.max_running, self.step_tokens, clock=lambda: self.now
        )
        self.live: dict[str, tuple[Arrival, Sequence]] = {}
        self.random = random.Random(5)
        let_in = self.scheduler.line.let_in

        def watched(sequence: Sequence) -> None:
            self._admitted(sequence)
            let_in(sequence)

        self.scheduler.line.let_in = watched  # type: ignore[method-assign]

    def run(self) -> Simulation:
        """All arrivals, answered."""
        order = self.arrivals if self.closed else sorted(self.arrivals, key=lambda each: each.at)
        coming = list(enumerate(order))[::-1]
        while coming or self.live:
            while coming and (
                len(self.live) < self.closed if self.closed else coming[-1][1].at <= self.now
            ):
                self._arrive(*coming.pop())
            plan = self.scheduler.plan()
            if plan is None:
                assert not self.live, "there are sequences, but none can go on"
                self.now = max(self.now, coming[-1][1].at)
                continue
            self._step(plan)
        self.manager.check()
        assert all(group.used == 0 for group in self.manager.use())
        return self

    def _arrive(self, number: int, arrival: Arrival) -> None:
        if self.closed:
            arrival.at = self.now
        request = Request(
            str(number), tuple(arrival.prompt), client=arrival.client, priority=arrival.priority
        )
        end = len(arrival.prompt) + arrival.answer
        sequence = Sequence(
            request=request,
            index=0,
            order=(arrival.priority, number, 0),
            tokens=array("i", arrival.prompt),
            end=end,
            table=self.manager.open(),
            sink=print,
            clock=Clock(arrival.at),
            output=Output(request, 0, arrival.answer, ToyDetokenizer(), frozenset()),
            seed=0,
        )
        self.live[request.id] = (arrival, sequence)
        self.scheduler.add(sequence)

    def _step(self, plan: StepPlan) -> None:
        answers = sum(1 for span in plan.spans if span.count == 1)
        seconds = self.cost.of(plan)
        self.now += seconds
        self.steps.append((answers, plan.tokens, seconds))
        self.scheduler.commit(plan)
        self.scheduler.pace.observe(answers, plan.tokens, seconds)
        for span in plan.spans:
            arrival, sequence = self.live[span.sequence.request.id]
            assert sequence.computed <= len(sequence.tokens) <= sequence.end
            if not span.choose:
                continue
            sequence.tokens.append(self.random.randrange(1000))
            self.tokens += 1
            arrival.first = self.now if arrival.first < 0 else arrival.first
            if len(sequence.tokens) == sequence.end:
                arrival.done = self.now
                self.scheduler.remove(sequence)
                del self.live[sequence.request.id]
        if self.audit:
            self._audit()

    def _audit(self) -> None:
        assert len(self.scheduler.running) <= self.max_running
        if len(self.steps) % 50 == 0:
            self.manager.check()
            for sequence in self.scheduler.line:
                arrival = self.live[sequence.request.id][0]
                if arrival.overdue_at < 0 and self.now - arrival.at >= PATIENCE:
                    arrival.overdue_at = self.admissions
                    arrival.before = sum(
                        each.order[1] < sequence.order[1] for each in self.scheduler.line
                    )

    def _admitted(self, sequence: Sequence) -> None:
        self.admissions += 1
        if not self.audit:
            return
        mine = self.live[sequence.request.id][0]
        looked = len(self.scheduler.line) < 50 or self.admissions % 25 == 0  # for time's sake
        for other in self.scheduler.line if looked else ():
            theirs = self.live[other.request.id][0]
            if (theirs.client, theirs.priority) == (mine.client, mine.priority):
                assert other.order[1] >= sequence.order[1] or other.order[0] > sequence.order[0], (
                    "within a client's priority the first comes first"
                )
        if mine.overdue_at >= 0:
            # Whoever is preempted stands in the line again, older than most: hence the second.
            turns = TURN * (mine.before + 2 + self.scheduler.preemptions)
            assert self.admissions - mine.overdue_at <= turns, "somebody waits without a bound"

    def first_tokens(self, share: float) -> float:
        """The quantile of the seconds to the first token."""
        waits = sorted(each.first - each.at for each in self.arrivals)
        return waits[min(len(waits) - 1, int(share * len(waits)))]

    def served(self, until: float) -> Counter[str]:
        """Answers complete at some time, by client."""
        return Counter(each.client for each in self.arrivals if each.done <= until)


def some(
    count: int, seed: int, rate: float, clients: int = 4, shared: float = 0.3
) -> list[Arrival]:
    """Random requests: bursts and lulls, long and short, some with a common beginning."""
    draw = random.Random(seed)
    system = [[draw.randrange(1000) for _ in range(200)] for _ in range(3)]
    at = 0.0
    arrivals: list[Arrival] = []
    for _ in range(count):
        at += draw.expovariate(rate) if draw.random() < 0.5 else 0.0
        length = min(2000, int(draw.lognormvariate(3.5, 1.0)) + 1)
        prompt = [draw.randrange(1000) for _ in range(length)]
        if draw.random() < shared:
            prompt = system[draw.randrange(3)] + prompt
        arrivals.append(
            Arrival(
                at,
                prompt,
                min(200, int(draw.lognormvariate(2.3, 0.8)) + 1),
                f"client {min(draw.randrange(clients), draw.randrange(clients))}",
                draw.choice((0, 0, 0, 0, -1, 3)),
            )
        )
    return arrivals
