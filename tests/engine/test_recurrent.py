"""Recurrent states: found where they were left, and nowhere else. The toy's text depends on every
token by way of a state that it checks to be of just the tokens before a step."""

from __future__ import annotations

import random

import pytest

from gristmill.types import Request, Slot, StateSpec, Window
from tests.engine.fakes import FULL, Toy, greedy, make_plan, oracle

STATES: list[tuple[StateSpec, ...]] = [
    (Slot(7), FULL),
    (FULL, Slot(7), Slot(9)),
    (FULL, Window(1, 8, 40), Slot(7)),
    (Slot(7),),
]


def cached(toy: Toy, prompt: tuple[int, ...], states: tuple[StateSpec, ...], count: int = 6) -> int:
    """Ask, hold the text to the oracle's; tokens that came from the cache."""
    answer = toy.ask(Request("r", prompt, greedy(max_tokens=count, ignore_eos=True)))
    assert answer.tokens() == oracle(prompt, states, count, banned=(0,))
    timings = answer.last().timings
    assert timings is not None
    return timings.cached_tokens


@pytest.mark.parametrize("states", STATES)
def test_a_turn_computes_only_what_is_new(states: tuple[StateSpec, ...]) -> None:
    """It goes on from the very end of the turn before."""
    draw = random.Random(2)
    talk = tuple(draw.choices(range(1, 61), k=50))
    with Toy(make_plan(states)) as toy:
        known = 0
        for _ in range(5):
            answer = toy.ask(Request("r", talk, greedy(max_tokens=11, ignore_eos=True)))
            timings = answer.last().timings
            assert timings is not None and timings.cached_tokens == known
            known = len(talk) + 10
            talk = (*talk, *answer.tokens(), *draw.choices(range(1, 61), k=20))


@pytest.mark.parametrize("states", STATES)
def test_a_turn_goes_on_from_the_prompt_when_its_answer_is_told_otherwise(
    states: tuple[StateSpec, ...],
) -> None:
    draw = random.Random(3)
    first = tuple(draw.choices(range(1, 61), k=110))
    with Toy(make_plan(states)) as toy:
        assert cached(toy, first, states, 40) == 0
        assert cached(toy, (*first, 60, 59, 58, 57, 56, 55), states) == 110
        assert cached(toy, first[:108] + (60, 1, 2, 3), states) == 96, "the prompt's last block"


@pytest.mark.parametrize("states", STATES[:2])
def test_where_prompts_part_is_kept_from_the_second_time_on(
    states: tuple[StateSpec, ...],
) -> None:
    draw = random.Random(4)
    system = tuple(draw.choices(range(1, 61), k=200))
    users = [tuple(draw.choices(range(1, 61), k=100)) for _ in range(3)]
    with Toy(make_plan(states)) as toy:
        assert cached(toy, system + users[0], states) == 0
        cached(toy, system + users[1], states)
        assert cached(toy, system + users[2], states) >= 192


@pytest.mark.parametrize("states", STATES[:1])
def test_long_prompts_leave_checkpoints(states: tuple[StateSpec, ...]) -> None:
    """Whatever becomes of their end: after 512 tokens, here with steps of 48."""
    draw = random.Random(5)
    long = tuple(draw.choices(range(1, 61), k=700))
    with Toy(make_plan(states, context=1024)) as toy:
        assert cached(toy, long, states) == 0
        assert cached(toy, long[:530] + (60 - long[530], 3), states) >= 512


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("states", STATES)
def test_any_mixture_gives_the_text_of_no_cache(states: tuple[StateSpec, ...], seed: int) -> None:
    """Many requests at once, from a few beginnings, in too little memory: preempted, aborted,
    computed again."""
    draw = random.Random(seed)
    roots = [tuple(draw.choices(range(1, 61), k=100)) for _ in range(3)]
    prompts = [
        draw.choice(roots)[: draw.randrange(1, 100)] + tuple(draw.choices(range(1, 61), k=3))
        for _ in range(40)
    ]
    few = [9 if isinstance(spec, Slot) else 24 for spec in states]
    plan = make_plan(states, blocks=few, context=192, max_running=6)
    with Toy(plan) as toy:
        answers = [
            toy.submit(Request(str(n), prompt, greedy(max_tokens=8, ignore_eos=True)))
            for n, prompt in enumerate(prompts)
        ]
        for number in range(3, 40, 9):
            toy.engine.abort(str(number))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            tokens = answer.wait().tokens()
            whole = oracle(prompt, states, 8, banned=(0,))
            assert tokens == (whole[: len(tokens)] if number % 9 == 3 else whole)
        assert toy.engine.stats().prefix_hits > 0
        assert set(toy.used()) == {0}
