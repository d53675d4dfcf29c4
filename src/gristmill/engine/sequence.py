"""One answer in the making: mutable, and touched by the engine's thread only."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from time import monotonic

from gristmill.backends.ops import Chooser
from gristmill.engine.draft import Lookup
from gristmill.engine.embedding import Pool
from gristmill.engine.grammar import Guide
from gristmill.engine.output import Output
from gristmill.kv.blocks import BlockTable
from gristmill.types import Progress, Request, Sink, Timings, TokenLogprob


@dataclass(slots=True)
class Clock:
    """When things happened to a sequence, in ``time.monotonic`` seconds."""

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """Answer ``index`` of a request: its tokens, how many of them are computed, its blocks.

    ``tokens`` are all known tokens, prompt first; ``computed`` of them have been through the
    model. ``end`` is the number of tokens at which the answer is full. ``order`` is the
    place in the line: (priority, arrival, index), smaller goes first.
    """

    request: Request
    index: int
    order: tuple[int, int, int]
    tokens: array[int]
    end: int
    table: BlockTable
    sink: Sink
    clock: Clock
    output: Output
    seed: int
    banned: tuple[int, ...] = ()
    """Ids that may not be chosen before ``min_tokens``."""
    always_banned: tuple[int, ...] = ()
    chooser: Chooser | None = None
    guide: Guide | None = None
    """What its constraint, or its thinking budget, allows next."""
    computed: int = 0
    dropped: int = 0
    """Tokens that went because the context was full: ``tokens`` has the rest."""
    cached: int | None = None
    """Prompt tokens found in the prefix cache when first admitted."""
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list[TokenLogprob | None])
    pool: Pool | None = None
    """What collects its embedding."""
    lookup: Lookup | None = None
    """Where its last tokens came before; made when guesses may be worth it."""
    drafted: int = 0
    accepted: int = 0
    """Guessed tokens that were tried, and those of them that were right."""
    running: bool = False
    """Whether it holds blocks; else it is in the line."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        """Tokens chosen so far."""
        return len(self.tokens) + self.dropped - len(self.request.prompt)

    @property
    def gap(self) -> int:
        """Tokens known but not computed: the one number that a step makes smaller."""
        return len(self.tokens) - self.computed

    @property
    def scored(self) -> int | None:
        """Alternatives per prompt token whose log-probability is still wanted, or None."""
        wanted = self.request.sampling.prompt_logprobs
        if wanted is None or len(self.prompt_logprobs) >= self.prompt_tokens:
            return None
        return wanted

    @property
    def thorough(self) -> bool:
        """Whether every row of the prompt is wanted: none of it can come from the cache."""
        return self.scored is not None or self.request.pooling not in (None, "last")

    def shift(self) -> None:
        """Drop the older half of the context, or as much as the request says, after what it wants
        kept. Nothing of what is left counts as computed."""
        request, known = self.request, len(self.tokens)
        keep = self.prompt_tokens if request.keep < 0 else request.keep
        keep = min(keep, known - 4)
        discard = min(request.discard or (known - keep) // 2, known - keep - 1)
        del self.tokens[keep : keep + discard]
        self.dropped += discard
        self.end -= discard
        self.computed = 0

    def banned_now(self) -> tuple[int, ...]:
        """Ids that may not be chosen next."""
        early = self.generated < self.request.sampling.min_tokens
        banned = self.banned if early else self.always_banned
        guided = () if self.guide is None else self.guide.bans
        return (*banned, *guided) if guided else banned

    def timings(self) -> Timings:
        """What it has cost so far."""
        clock, now = self.clock, monotonic()
        admitted = now if clock.admitted is None else clock.admitted
        first = now if clock.first_token is None else clock.first_token
        last = first if clock.last_token is None else clock.last_token
        return Timings(
            queue_s=admitted - clock.submitted,
            prefill_s=max(0.0, first - admitted),
            decode_s=max(0.0, last - first),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached or 0,
            generated_tokens=self.output.generated,
            draft_tokens=self.drafted,
            draft_accepted=self.accepted,
            dropped_tokens=self.dropped,
        )

    def progress(self, now: float) -> Progress:
        """How far its prompt is."""
        began = now if self.clock.admitted is None else self.clock.admitted
        return Progress(self.prompt_tokens, self.cached or 0, self.computed, now - began)
