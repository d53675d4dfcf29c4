"""Which guesses are tried: those that are worth more than they cost.

A step with more rows takes longer, but not in proportion: the weights are read once for all of
them. So a row that checks a guessed token is cheap, and if the guess is right a whole step is
saved. ``Cost`` measures what steps of so many rows take, ``Lookup`` how likely guesses are
right; of all sequences' guesses the likeliest are tried, as many as make the most tokens a second.
Often that is none.

A guess is right if it is the token that is chosen. Tokens are chosen one after the other, each from
the row of the one before, with the same random numbers, penalties and constraints as ever, so the
text is what it would have been without guesses, whatever the temperature. (For a guess that is
certain of itself this is rejection sampling: it is taken with its own probability, else another
token is drawn from the rest.) Rows of wrong guesses never count as computed: the next step
overwrites them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from gristmill.engine.draft import Lookup, Odds
from gristmill.engine.plan import Plan
from gristmill.engine.scheduler import Span, StepPlan
from gristmill.kv.blocks import BlockManager

MOST_ROWS = 64
"""Most rows of a step that has guesses."""
WORTH = 1.03
"""How many times as many tokens a second guesses must promise."""
_SLOPE = 0.05
"""What one more row is taken to cost, in steps of one row, as long as nothing is measured."""
_WEIGHT = 0.1


class Cost:
    """Seconds of a step by its number of rows: running means, measured while serving.

    All are kept in proportion to one number, which every measurement moves: contexts that grow
    and a machine that others use too then count for numbers of rows that were not tried lately.
    """

    def __init__(self) -> None:
        self._level = 0.0
        self._ratios: dict[int, float] = {}
        self._rows: list[int] = []

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long. A step that something held up counts little."""
        known = self.seconds(rows)
        if not self._rows:
            self._level, self._ratios[rows] = seconds, 1.0
            self._rows.append(rows)
            return
        seconds = min(seconds, 2 * known)
        if rows not in self._ratios:
            insort(self._rows, rows)
            self._ratios[rows] = seconds / self._level
            return
        moved = 1 + _WEIGHT * (seconds / known - 1)
        common = moved**0.5
        self._level *= common
        self._ratios[rows] *= moved / common

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take; 0 if nothing is known."""
        ratio = self._ratios.get(rows)
        if ratio is not None:
            return ratio * self._level
        if not self._rows:
            return 0.0
        at = bisect_left(self._rows, rows)
        if at == 0:
            return self._ratios[self._rows[0]] * self._level
        low = self._rows[at - 1]
        least = self._ratios[low]
        if at < len(self._rows):
            high = self._rows[at]
            share = (rows - low) / (high - low)
            return (least + share * (self._ratios[high] - least)) * self._level
        first = self._rows[0]
        slope = _SLOPE * self._ratios[first] / (1 + _SLOPE * (first - 1))
        if at > 1:
            slope = max(slope / 4, (least - self._ratios[first]) / (low - first))
        return (least + slope * (rows - low)) * self._level


@dataclass(slots=True)
class Tally:
    """Guesses tried, their tokens, and those of them that were right."""

    drafts: int = 0
    tokens: int = 0
    accepted: int = 0


class Speculator:
    """Adds guesses to the steps of one engine; to none if the plan says so."""

    def __init__(self, manager: BlockManager, plan: Plan) -> None:
        self._manager = manager
        self._context = plan.context
        self._most = plan.draft_tokens
        self._least = plan.draft_match
        self._odds = Odds(0.99, start=20.0)
        self.cost = Cost()
        self.tally = Tally()

    def extend(self, plan: StepPlan) -> None:
        """Add rows for guesses to a step, if all of it is answers' next tokens."""
        spans = plan.spans
        if not self._most or plan.embeds or any(not s.choose or s.count > 1 for s in spans):
            return
        wishes: list[tuple[float, int]] = []
        for number, span in enumerate(spans):
            wishes.extend((chance, number) for chance in self._chances(span))
        tried = self._worth(len(spans), sorted(wishes, reverse=True))
        if not tried:
            return
        counts = [0] * len(spans)
        for _, number in tried:
            counts[number] += 1
        row = 0
        for span, count in zip(spans, counts, strict=True):
            self._draft(span, row, count)
            row += span.count
        plan.tokens = row

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long."""
        if self._most and not plan.embeds and all(s.count == 1 + len(s.draft) for s in plan.spans):
            self.cost.observe(plan.tokens, seconds)

    def accepted(self, span: Span, count: int) -> None:
        """So many of a span's guesses were right."""
        sequence = span.sequence
        sequence.drafted += len(span.draft)
        sequence.accepted += count
        self.tally.drafts += 1
        self.tally.tokens += len(span.draft)
        self.tally.accepted += count

    def _chances(self, span: Span) -> list[float]:
        sequence = span.sequence
        lookup = sequence.lookup
        if lookup is None:
            lookup = sequence.lookup = Lookup(self._odds, self._least)
        known = len(sequence.tokens)
        lookup.follow(sequence.tokens)
        return lookup.chances(min(self._most, sequence.end - known - 1, self._context - known - 1))

    def _worth(self, plain: int, wishes: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """The first of these that make the most tokens a second together, likeliest first."""
        seconds = self.cost.seconds(plain)
        if not seconds or not wishes:
            return []
        best, best_rate = 0, WORTH * plain / seconds
        promised = float(plain)
        for count, (chance, _) in enumerate(wishes[: MOST_ROWS - plain], 1):
            promised += chance
            rate = promised / self.cost.seconds(plain + count)
            if rate > best_rate:
                best, best_rate = count, rate
        return wishes[:best]

    def _draft(self, span: Span, row: int, count: int) -> None:
        """Give a span its new place and ``count`` guesses, or fewer where there is no room or a
        constraint does not allow them."""
        sequence = span.sequence
        draft: list[int] = []
        if count and sequence.lookup is not None:
            draft = sequence.lookup.guess(sequence.tokens, count)
            if sequence.guide is not None:
                draft = draft[: sequence.guide.allows(draft)]
            if not self._manager.reserve(sequence.table, len(sequence.tokens) + len(draft)):
                draft = []
        span.draft = draft
        span.row = row
        span.count = 1 + len(draft)
        span.wanted = range(row, row + span.count)
