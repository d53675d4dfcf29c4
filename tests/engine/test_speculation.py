"""Guesses: the text is what it is without them, and they are tried only where they pay."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.ops import F32, Batch
from gristmill.engine.draft import Lookup, Odds
from gristmill.engine.plan import Plan
from gristmill.engine.speculation import Cost, Speculator
from gristmill.types import Request, SamplingParams, StateSpec, Window
from tests.engine.fakes import FULL, VOCAB, Answer, Toy, greedy, make_plan

LAYOUTS: list[tuple[StateSpec, ...]] = [(FULL,), (FULL, Window(1, 8, 40)), (Window(1, 8, 33),)]


def speculating(plan: Plan, most: int = 8) -> Plan:
    """The same, with guesses."""
    return replace(plan, draft_tokens=most)


class Repetitive:
    """The toy's program with a taste for saying what it said: logits favour what followed the last
    two tokens before, so that guesses are right often, yet not always."""

    def __init__(self, toy: Toy) -> None:
        self.inner = toy.program.run
        self.memory = toy.memory
        toy.program.run = self.run  # type: ignore[method-assign]

    def run(self, batch: Batch) -> F32:
        logits = self.inner(batch)
        for index, row in enumerate(map(int, batch.outputs)):
            number = int(np.searchsorted(batch.spans[:, 0], row, side="right")) - 1
            position = int(batch.positions[row])
            where = np.arange(max(0, position - 30), position + 1)
            blocks = batch.tables[0][number, where // 32]
            seen = self.memory.data[0][blocks, where % 32, 0].tolist()
            for at in range(len(seen) - 3, 0, -1):
                if seen[at - 1 : at + 1] == seen[-2:]:
                    logits[index, seen[at + 1]] += 8.0
                    break
        return logits


def always_worth(toy: Toy) -> None:
    """Rows cost nothing, so that guesses are tried wherever there are some."""
    cost = toy.engine._speculator.cost  # pyright: ignore[reportPrivateUsage]
    cost.seconds = lambda rows: 1.0  # type: ignore[method-assign]
    cost.observe = lambda rows, seconds: None  # type: ignore[method-assign]


def ask_all(plan: Plan, requests: list[Request], free: bool = True) -> tuple[list[Answer], int]:
    """The answers, and how many guessed tokens were right."""
    with Toy(plan, eos=frozenset({0})) as toy:
        Repetitive(toy)
        if free:
            always_worth(toy)
        answers = [toy.submit(request) for request in requests]
        for answer in answers:
            answer.wait()
        assert toy.used() == [0] * len(plan.facts.states)
        return answers, toy.engine.stats().draft_accepted


def make_requests(seed: int, count: int) -> list[Request]:
    """All kinds of them."""
    dice = random.Random(seed)
    requests: list[Request] = []
    for number in range(count):
        run = [dice.randrange(1, VOCAB) for _ in range(dice.randrange(2, 9))]
        params = SamplingParams(
            temperature=dice.choice((0.0, 0.0, 0.7)),
            max_tokens=dice.randrange(1, 70),
            seed=number,
            logprobs=dice.choice((None, 2)),
            stop=dice.choice(((), ("ab",), ("c.",))),
            min_tokens=dice.choice((0, 9)),
            ignore_eos=dice.random() < 0.5,
        )
        requests.append(Request(str(number), tuple(run * dice.randrange(1, 12)), params))
    return requests


@pytest.mark.parametrize("states", LAYOUTS)
@pytest.mark.parametrize("blocks", [None, 12])
def test_the_text_is_the_same(states: tuple[StateSpec, ...], blocks: int | None) -> None:
    """Greedy and sampled, with stop strings, log-probabilities, preemption, in one batch."""
    room = None if blocks is None else [blocks] * len(states)
    plan = make_plan(states, room, context=256)
    accepted = 0
    for seed in range(4):
        requests = make_requests(seed, 9)
        plain, none = ask_all(plan, requests)
        guessed, right = ask_all(speculating(plan), requests)
        assert none == 0
        accepted += right
        for one, other in zip(plain, guessed, strict=True):
            assert one.tokens() == other.tokens()
            assert one.text() == other.text()
            assert one.last().finish == other.last().finish
            assert one.last().stopped_by == other.last().stopped_by
            scores = [[s for d in each.deltas[0] for s in d.logprobs] for each in (one, other)]
            assert scores[0] == scores[1]
    assert accepted > 100


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 20))
def test_no_requests_tell_guesses_from_none(seed: int, most: int) -> None:
    requests = make_requests(seed, 4)
    plan = make_plan(context=256)
    plain, _ = ask_all(plan, requests)
    guessed, _ = ask_all(speculating(plan, most), requests)
    assert [a.tokens() for a in plain] == [a.tokens() for a in guessed]


def test_a_context_that_shifts() -> None:
    plan = replace(make_plan(context=96, step_tokens=32), context_shift=True)
    requests = [
        Request(str(n), (n, 2, 3) * 15, greedy(max_tokens=200, ignore_eos=True)) for n in range(3)
    ]
    plain, _ = ask_all(plan, requests)
    guessed, right = ask_all(speculating(plan), requests)
    assert [a.tokens() for a in plain] == [a.tokens() for a in guessed]
    assert right > 20


def test_an_abort_in_the_middle() -> None:
    with Toy(speculating(make_plan())) as toy:
        Repetitive(toy)
        always_worth(toy)
        answer = toy.submit(Request("a", (1, 2, 3) * 9, greedy(max_tokens=400, ignore_eos=True)))
        answer.wait_tokens(30)
        toy.engine.abort("a")
        answer.wait()
        assert toy.used() == [0]
        again = toy.ask(Request("b", (1, 2, 3) * 9, greedy(max_tokens=50, ignore_eos=True)))
        assert again.tokens()[:30] == answer.tokens()[:30]


def test_timings_and_totals_agree() -> None:
    with Toy(speculating(make_plan())) as toy:
        Repetitive(toy)
        always_worth(toy)
        answer = toy.ask(Request("a", (1, 2, 3) * 9, greedy(max_tokens=200, ignore_eos=True)))
        timings, stats = answer.last().timings, toy.engine.stats()
    assert timings is not None
    assert (timings.draft_tokens, timings.draft_accepted) == (
        stats.draft_tokens,
        stats.draft_accepted,
    )
    assert 0 < stats.draft_accepted <= stats.draft_tokens
    assert stats.steps + stats.draft_accepted >= 200 > stats.steps
    assert stats.generated_tokens == 200


def test_the_distribution_is_the_same() -> None:
    """Chi-square over the token after a guess, drawn with a guess and with none.

    The guesses are the same in all draws, so if they pushed the choice the counts would tell.
    """
    prompt = (7, 8, 9, 10, 7, 8, 9)
    counts = np.zeros((2, VOCAB))
    for guesses in (0, 1):
        plan = make_plan(context=64)
        with Toy(speculating(plan, 4) if guesses else plan, eos=frozenset()) as toy:
            Repetitive(toy)
            always_worth(toy)
            for draw in range(1500):
                params = SamplingParams(temperature=1.2, max_tokens=2, seed=draw + 5000 * guesses)
                counts[guesses, toy.ask(Request("r", prompt, params)).tokens()[1]] += 1
            assert (toy.engine.stats().draft_tokens > 500) == bool(guesses)
    common = counts.sum(0) >= 20
    table = np.c_[counts[:, common], counts[:, ~common].sum(1)]
    expected = table.sum(0) / 2
    freedom = table.shape[1] - 1
    chi = ((table - expected) ** 2 / expected).sum()
    assert chi < freedom + 4 * (2 * freedom) ** 0.5


# ------------------------------------------------------------------ guesses


def test_a_lookup_goes_on_where_the_text_came_before() -> None:
    lookup = Lookup(Odds(start=20.0))
    tokens = array("i", [1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3])
    lookup.follow(tokens)
    assert lookup.guess(tokens, 3) == [4, 5, 6]
    assert lookup.agreed == 3
    tokens.extend((4, 5))
    lookup.follow(tokens)
    assert (lookup.guess(tokens, 2), lookup.agreed) == ([6, 7], 5)
    tokens.append(9)
    lookup.follow(tokens)
    assert lookup.guess(tokens, 2) == []


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 4), st.integers(1, 9))
def test_what_is_guessed_did_follow(values: list[int], least: int, most: int) -> None:
    lookup, tokens = Lookup(Odds(start=20.0), least), array("i")
    for value in values:
        tokens.append(value)
        lookup.follow(tokens)
        guess = lookup.guess(tokens, most)
        if guess:
            assert len(guess) == most == len(lookup.chances(most))
            longer = [*tokens, *guess]
            agreed = min(least, lookup.agreed)
            assert (
                longer[lookup.at - agreed : lookup.at] == longer[len(tokens) - agreed : len(tokens)]
            )
            assert longer[lookup.at : lookup.at + most] == guess


def test_one_walk_or_many_find_the_same() -> None:
    values = [random.Random(3).randrange(3) for _ in range(200)]
    whole, part = Lookup(Odds()), Lookup(Odds())
    whole.follow(array("i", values[:150]))
    part.follow(array("i", values[:150]))
    for end in range(151, 201):
        part.follow(array("i", values[:end]))
    whole.follow(array("i", values))
    assert (whole.at, whole.agreed) == (part.at, part.agreed)


def test_a_cost_is_learnt() -> None:
    cost = Cost()
    assert cost.seconds(4) == 0.0
    for _ in range(50):
        cost.observe(1, 0.010)
    assert cost.seconds(1) == pytest.approx(0.010)
    assert 0.010 < cost.seconds(4) < 0.020
    for _ in range(100):
        cost.observe(9, 0.018)
        cost.observe(1, 0.010)
    assert cost.seconds(9) == pytest.approx(0.018, rel=0.05)
    assert cost.seconds(5) == pytest.approx(0.014, rel=0.05)
    for _ in range(100):  # the machine is shared from now on, though no nine rows are tried
        cost.observe(1, 0.020)
    assert cost.seconds(1) == pytest.approx(0.020, rel=0.05)
    assert cost.seconds(9) > 0.022


def test_a_hiccup_hardly_counts() -> None:
    cost = Cost()
    cost.observe(1, 0.01)
    cost.observe(1, 3.0)
    assert cost.seconds(1) < 0.012


@pytest.mark.parametrize(("slope", "tried"), [(0.02, True), (1.0, False)])
def test_guesses_are_tried_where_they_pay(slope: float, tried: bool) -> None:
    plan = speculating(make_plan(context=512))
    with Toy(plan, eos=frozenset()) as toy:
        Repetitive(toy)
        speculator: Speculator = toy.engine._speculator  # pyright: ignore[reportPrivateUsage]
        cost = speculator.cost
        cost.seconds = lambda rows: 1.0 + slope * (rows - 1)  # type: ignore[method-assign]
        cost.observe = lambda rows, seconds: None  # type: ignore[method-assign]
        toy.ask(Request("a", (1, 2, 3, 4) * 9, greedy(max_tokens=300)))
        assert (toy.engine.stats().draft_tokens > 0) == tried
