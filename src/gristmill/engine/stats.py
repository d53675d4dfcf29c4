"""Counters of an engine, and the frozen snapshot that others may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from gristmill.engine.plan import Plan
from gristmill.engine.scheduler import Scheduler
from gristmill.engine.speculation import Tally
from gristmill.kv.blocks import BlockManager, GroupUse
from gristmill.kv.pools import Pools

TOKEN_BOUNDS = (
    1.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
)
SECOND_BOUNDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


@dataclass(frozen=True, slots=True)
class HistogramView:
    """``counts[i]`` observations were at most ``bounds[i]``, and above ``bounds[i - 1]``.

    ``counts`` has one more entry than ``bounds``: those above all.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts observations by size."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """One more observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def view(self) -> HistogramView:
        """A frozen copy."""
        return HistogramView(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot. Tokens and requests are totals since the start; seconds likewise."""

    running: int
    waiting: int
    kv: tuple[GroupUse, ...]
    kv_bytes: int
    """Bytes of KV memory taken from the machine."""
    kv_bytes_limit: int
    weights_bytes: int
    requests: int
    finished: Mapping[str, int]
    """Answers by finish reason."""
    prompt_tokens: int
    """Of prompts that were worked off, cached tokens included."""
    computed_tokens: int
    """Through the model: recomputation counts again, cached tokens do not count."""
    generated_tokens: int
    prefix_queries: int
    """Tokens that were looked up in the prefix cache."""
    prefix_hits: int
    """Tokens that were found there."""
    preemptions: int
    steps: int
    step_sequences: int
    """Sequences that had a part in a step, summed over steps."""
    step_tokens: HistogramView
    step_seconds: HistogramView
    model_seconds: float
    """Seconds of the steps that the back end took (the rest is Python's)."""
    drafts: int = 0
    """Guesses tried (``engine.speculation``), the tokens in them, and how many were right."""
    draft_tokens: int = 0
    draft_accepted: int = 0
    stalled: float = 0.0
    """Seconds that the step which is computed now has made no progress; 0 while none is."""

    @property
    def kv_usage(self) -> float:
        """Share of the fullest group's blocks that running sequences hold, 0 to 1."""
        return max((group.used / max(1, group.limit) for group in self.kv), default=0.0)


@dataclass(slots=True)
class Counters:
    """What the engine's thread counts."""

    requests: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )
    prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_sequences: int = 0
    model_seconds: float = 0.0
    step_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    step_seconds: Histogram = field(default_factory=lambda: Histogram(SECOND_BOUNDS))


def snapshot(
    counters: Counters,
    scheduler: Scheduler,
    manager: BlockManager,
    pools: Pools,
    tally: Tally,
    plan: Plan,
    alive: int,
    stalled: float,
) -> Stats:
    """All of it at one moment. ``alive`` answers run or wait."""
    running = len(scheduler.running)
    return Stats(
        running=running,
        waiting=max(0, alive - running),
        kv=manager.use(),
        kv_bytes=pools.used_bytes(),
        kv_bytes_limit=plan.kv_bytes,
        weights_bytes=plan.facts.weights_bytes,
        requests=counters.requests,
        finished=dict(counters.finished),
        prompt_tokens=counters.prompt_tokens,
        computed_tokens=counters.computed_tokens,
        generated_tokens=counters.generated_tokens,
        prefix_queries=scheduler.prefix_queries,
        prefix_hits=scheduler.prefix_hits,
        preemptions=scheduler.preemptions,
        steps=counters.steps,
        step_sequences=counters.step_sequences,
        step_tokens=counters.step_tokens.view(),
        step_seconds=counters.step_seconds.view(),
        model_seconds=counters.model_seconds,
        drafts=tally.drafts,
        draft_tokens=tally.tokens,
        draft_accepted=tally.accepted,
        stalled=stalled,
    )
