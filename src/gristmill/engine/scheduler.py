"""Who computes how many tokens in the next step.

The one law: every sequence has ``computed <= len(tokens)``, and a step only closes that gap,
within a budget of tokens. A prompt in chunks, a prefix found in the cache, a sequence that
lost its blocks and comes back: all are a gap of some size. ``plan`` decides, in five moves:

1. admit: sequences from the line (``line``), while there is room (their whole known text gets
   blocks); if there is none, somebody may have to yield;
2. catch up: whose prompt another one has computed meanwhile takes it over, whose prompt
   another one is computing just now waits for it;
3. share: the budget among the running (``shares``);
4. make room: the oldest first; when blocks run out the youngest goes back into the line;
5. the rest is written down as a ``StepPlan``, plain data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from time import monotonic

from gristmill.engine.line import Line, Shares, owner
from gristmill.engine.pace import Pace
from gristmill.engine.scores import ScoreCache
from gristmill.engine.sequence import Sequence
from gristmill.engine.shelving import Shelving
from gristmill.kv.blocks import BlockManager

SCORED_CHUNK = 32
"""Most tokens a step computes of a prompt that wants logits for each of them."""

YIELD_AFTER = 2.0
"""Seconds that a client waits before another one, who runs several, makes room for it."""
YIELD_EVERY = 0.5
"""Seconds between two such."""


@dataclass(slots=True)
class Span:
    """Rows ``[row, row + count)`` of a step: tokens ``[computed, computed + count)``.

    ``choose`` is true if the last row's logits give the sequence's next token; ``wanted`` are
    all rows whose logits are wanted, those that score the prompt included.
    """

    sequence: Sequence
    row: int
    count: int
    computed: int
    choose: bool
    wanted: range
    draft: list[int] = field(default_factory=list[int])
    """Guessed tokens after those that are known; the last ``len(draft)`` rows are theirs, and each
    row's logits are wanted."""
    first: int = -1
    """The row of logits that the next token is chosen from; the guesses' rows follow."""

    @property
    def known(self) -> int:
        """Rows of known tokens."""
        return self.count - len(self.draft)

    def holds(self, right: int) -> bool:
        """Whether the next guess after ``right`` right ones is the token that was chosen, and the
        answer goes on after it."""
        return (
            right < len(self.draft)
            and self.sequence.running
            and self.sequence.tokens[-1] == self.draft[right]
        )


@dataclass(slots=True)
class StepPlan:
    """What one step computes."""

    spans: list[Span]
    tokens: int
    embeds: list[Span] = field(default_factory=list[Span])
    """Those of prompts to be embedded: rows of a batch of their own, for another program."""


def shares(gaps: Seq[int], budget: int) -> list[int]:
    """Split a step's budget among gaps that are given oldest first.

    Half of it goes to the smallest gaps, so that running answers (gap 1) and short prompts
    never wait for a long one; the other half goes by age, so that the long one is never
    starved. What one half leaves over the other takes. Answers come before everything.
    """
    if sum(gaps) <= budget:
        return list(gaps)
    granted = [0] * len(gaps)
    ones = sum(1 for gap in gaps if gap == 1)
    quick = min(budget, max(ones, budget // 2))
    left = budget
    for index in sorted(range(len(gaps)), key=gaps.__getitem__):
        if quick == 0:
            break
        granted[index] = min(gaps[index], quick)
        quick -= granted[index]
        left -= granted[index]
    for index, gap in enumerate(gaps):
        if left == 0:
            break
        more = min(gap - granted[index], left)
        granted[index] += more
        left -= more
    return granted


class Scheduler:
    """The line of the waiting and the set of the running. Used by one thread."""

    def __init__(
        self,
        manager: BlockManager,
        max_running: int,
        step_tokens: int,
        slowdown: float = 2.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._manager = manager
        self._max_running = max_running
        self._step_tokens = max(step_tokens, max_running)
        self._clock = clock
        self.pace = Pace(self._step_tokens, slowdown)
        """Told by the engine how long steps took."""
        self._shares = Shares()
        self.line = Line(self._shares, clock)
        self._blocked_at = -1
        self._yielded = float("-inf")
        self.running: list[Sequence] = []
        """Oldest first."""
        self.scores = ScoreCache(manager)
        self.shelving: Shelving | None = None
        """Where prefixes are found that are not in memory."""
        self.stuck: Sequence | None = None
        """A sequence that finds no room even alone: the machine gave less than planned."""
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    # ------------------------------------------------------------- the line

    @property
    def waiting(self) -> int:
        """Sequences in the line."""
        return len(self.line)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.line)

    def sequences(self) -> list[Sequence]:
        """Everybody, running or waiting."""
        return [*self.running, *self.line]

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the line, at its place by priority and arrival."""
        self._shares.enter(sequence.request.client)
        self.line.add(sequence)
        self._blocked_at = -1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its blocks come back at once."""
        if sequence.running:
            self._leave(sequence)
        else:
            self.line.remove(sequence)
        self._shares.leave(sequence.request.client)
        self._blocked_at = -1

    def shift(self, sequence: Sequence) -> None:
        """A sequence's context is full: the older part goes, the rest is computed anew, with what
        it keeps from the start out of the cache."""
        self._leave(sequence)
        sequence.shift()
        del sequence.table.digests[:]
        self.line.add(sequence)
        self._blocked_at = -1

    def retry(self) -> None:
        """Memory may have come back without anybody's leaving: the line is looked at again."""
        self._blocked_at = -1

    def send_back(self) -> None:
        """The youngest goes back into the line: memory is short."""
        self._preempt(self.running[-1])

    def head(self) -> Sequence | None:
        """Who is next in the line."""
        return self.line.head()

    # -------------------------------------------------------------- planning

    def plan(self) -> StepPlan | None:
        """The next step; None if nothing can be computed now."""
        self._admit()
        self._catch_up()
        gaps = self._chunks()
        granted = shares(gaps, self.pace.budget(gaps.count(1)))
        plan = StepPlan([], 0)
        embedded = 0
        for sequence, count in zip(list(self.running), granted, strict=True):
            if count == 0 or not self._has_room(sequence, sequence.computed + count):
                continue
            if sequence.request.pooling is None:
                plan.spans.append(_span(sequence, plan.tokens - embedded, count))
            else:
                plan.embeds.append(_embed_span(sequence, embedded, count))
                embedded += count
            plan.tokens += count
        return plan if plan.tokens else None

    def commit(self, plan: StepPlan) -> None:
        """The step has been computed. New tokens are appended by whoever chose them."""
        for span in (*plan.spans, *plan.embeds):
            sequence = span.sequence
            sequence.computed = span.computed + span.known
            self._shares.charge(sequence.request.client, span.count, span.known == 1)
            self._manager.commit(sequence.table, sequence.tokens, sequence.computed)
            if span.choose and sequence.generated == 0:  # the request's other answers begin here
                self._manager.note_tail(sequence.table, sequence.tokens, sequence.computed)

    def accept(self, sequence: Sequence) -> None:
        """A guessed token was right, so one more is computed."""
        sequence.computed += 1
        self._manager.commit(sequence.table, sequence.tokens, sequence.computed)

    # --------------------------------------------------------------- details

    def _admit(self) -> None:
        while (sequence := self.line.head()) is not None:
            full = len(self.running) >= self._max_running
            blocked = self._blocked_at == self._manager.releases
            if full or blocked or not self._enter(sequence):
                if not full:
                    self._blocked_at = self._manager.releases
                    self.stuck = None if self.running else sequence
                if not self._yield_to(sequence):
                    return
                continue
            self.line.let_in(sequence)
            sequence.running = True
            self.running.append(sequence)
            self.running.sort(key=_order)

    def _yield_to(self, sequence: Sequence) -> bool:
        """Whether somebody running went back into the line for the head of it.

        That is one of a smaller priority; or the youngest of a client that runs several, for a
        client that runs none and has waited a while. What was computed of it stays in the cache
        as long as there is room, so coming back is cheap.
        """
        if not self.running:
            return False
        last = self.running[-1]
        if last.order[0] > sequence.order[0]:
            self._preempt(last)
            return True
        now = self._clock()
        if self.line.waited(sequence) < YIELD_AFTER or now < self._yielded + YIELD_EVERY:
            return False
        counts = Counter(owner(each.request.client) for each in self.running)
        client, most = counts.most_common(1)[0]
        if most < 2 or counts[owner(sequence.request.client)]:
            return False
        theirs = (each for each in reversed(self.running) if owner(each.request.client) == client)
        victim = next(theirs)
        if victim.order[0] < sequence.order[0]:
            return False
        self._yielded = now
        self._preempt(victim)
        return True

    def _enter(self, sequence: Sequence) -> bool:
        """Give a sequence its cached prefix and blocks for all that it knows; False if full."""
        manager, table = self._manager, sequence.table
        hit = 0
        if not sequence.thorough:
            hit = manager.match(table, sequence.tokens)
        elif (known := self.scores.recall(sequence)) > 0:
            hit = manager.match(table, sequence.tokens[: known + 1])
        if self.shelving is not None and not sequence.thorough:
            hit = self.shelving.recall(table, sequence.tokens, hit)
        manager.mark(table, sequence.prompt_tokens)
        if not manager.reserve(table, len(sequence.tokens), hit + self._step_tokens):
            manager.release(table)
            return False
        if not sequence.thorough:
            hit += manager.copy_tail(table, sequence.tokens, hit)
        sequence.computed = hit
        if sequence.cached is None:
            sequence.cached = hit
            sequence.clock.admitted = self._clock()
            if not sequence.request.part:
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += hit
        return True

    def _catch_up(self) -> None:
        """Equal prompts that arrive together are computed once: the followers jump ahead."""
        for sequence in list(self.running):
            before = sequence.computed
            if sequence.gap == 1 or sequence.thorough:
                continue
            if not self._manager.ahead(sequence.table, sequence.tokens, before):
                continue
            self._manager.release(sequence.table)
            if not self._enter(sequence):
                self._preempt(sequence)
            elif sequence.cached is not None and sequence.generated == 0:
                sequence.cached += sequence.computed - before
                self.prefix_hits += sequence.computed - before

    def _chunks(self) -> list[int]:
        """Most tokens that one step may compute, for each of the running.

        Zero for a sequence whose next block an older one is computing just now.
        """
        chunks: list[int] = []
        claimed: set[bytes] = set()
        for sequence in self.running:
            chunk = len(sequence.tokens) - sequence.computed
            if chunk > 1:
                next_digest = self._manager.next_digest(
                    sequence.table, sequence.tokens, sequence.computed
                )
                if sequence.scored is not None:
                    chunk = min(chunk, SCORED_CHUNK)
                elif next_digest in claimed and not sequence.thorough:
                    chunk = 0
                if next_digest is not None:
                    claimed.add(next_digest)
            chunks.append(chunk)
        return chunks

    def _has_room(self, sequence: Sequence, tokens: int) -> bool:
        """Reserve blocks, at the cost of the youngest; False if ``sequence`` itself had to go.

        Called oldest first: whoever is preempted has not been given its part of this step.
        """
        while sequence.running:
            if self._manager.reserve(sequence.table, tokens):
                return True
            youngest = self.running[-1]
            self._preempt(youngest)
            if not self.running:
                self.stuck = youngest
        return False

    def _preempt(self, sequence: Sequence) -> None:
        """Back into the line, with all tokens known and none computed."""
        self._leave(sequence)
        sequence.computed = 0
        self.preemptions += 1
        self.line.add(sequence)

    def _leave(self, sequence: Sequence) -> None:
        sequence.running = False
        self.running.remove(sequence)
        self._manager.note_tail(sequence.table, sequence.tokens, sequence.computed, last=True)
        self._manager.release(sequence.table)


def _span(sequence: Sequence, row: int, count: int) -> Span:
    computed, known = sequence.computed, len(sequence.tokens)
    after = computed + count
    choose = after == known < sequence.end
    first, end = row + count - 1, row + count if choose else row + count - 1
    if sequence.scored is not None:
        first = row + max(0, len(sequence.prompt_logprobs) - 1 - computed)
        end = end if choose else row + min(after, sequence.prompt_tokens - 1) - computed
    return Span(sequence, row, count, computed, choose, range(first, end))


def _embed_span(sequence: Sequence, row: int, count: int) -> Span:
    computed, end = sequence.computed, row + count
    wanted = {
        "first": range(row, row + (computed == 0)),
        "last": range(end - (computed + count == len(sequence.tokens)), end),
    }
    pooling = sequence.request.pooling or "each"
    return Span(sequence, row, count, computed, False, wanted.get(pooling, range(row, end)))


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order
