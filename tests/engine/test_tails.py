"""Prompts that part within a block; windows that turns come back to. The toy's text depends on
every token that it reads through the tables, so a wrong copy is a wrong text."""

from __future__ import annotations

import random

import pytest

from gristmill.types import Request, StateSpec, Window
from tests.engine.fakes import FULL, Toy, greedy, make_plan, oracle

STATES: list[tuple[StateSpec, ...]] = [(FULL,), (FULL, Window(1, 8, 40)), (Window(1, 8, 90), FULL)]


def cached(toy: Toy, prompt: tuple[int, ...], states: tuple[StateSpec, ...], count: int = 6) -> int:
    """Ask, hold the text to the oracle's; tokens that came from the cache."""
    answer = toy.ask(Request("r", prompt, greedy(max_tokens=count, ignore_eos=True)))
    assert answer.tokens() == oracle(prompt, states, count, banned=(0,))
    timings = answer.last().timings
    assert timings is not None
    return timings.cached_tokens


@pytest.mark.parametrize("states", STATES)
def test_a_prompt_that_parts_within_a_block_computes_the_rest_alone(
    states: tuple[StateSpec, ...],
) -> None:
    first = tuple(random.Random(1).choices(range(1, 61), k=150))
    with Toy(make_plan(states)) as toy:
        assert cached(toy, first, states) == 0
        for common in (140, 133, 75, 36):
            other = (*first[:common], 60 - first[common], *first[40:60])
            assert cached(toy, other, states) == common
        assert cached(toy, (*first[:99], 60 - first[99], 7), states) == 96, "3 are too few to copy"


@pytest.mark.parametrize("states", STATES)
def test_a_turn_computes_only_what_is_new(states: tuple[StateSpec, ...]) -> None:
    draw = random.Random(2)
    talk = tuple(draw.choices(range(1, 61), k=50))
    with Toy(make_plan(states)) as toy:
        known = 0
        for _ in range(5):
            answer = toy.ask(Request("r", talk, greedy(max_tokens=11, ignore_eos=True)))
            timings = answer.last().timings
            assert timings is not None and timings.cached_tokens == known
            # The last token of an answer was chosen, and never computed.
            known = len(talk) + 10
            talk = (*talk, *answer.tokens(), *draw.choices(range(1, 61), k=20))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("states", STATES)
def test_any_mixture_gives_the_text_of_no_cache(states: tuple[StateSpec, ...], seed: int) -> None:
    """Many requests at once, from a few beginnings, in too little memory."""
    draw = random.Random(seed)
    roots = [tuple(draw.choices(range(1, 61), k=100)) for _ in range(3)]
    prompts = [
        draw.choice(roots)[: draw.randrange(1, 100)] + tuple(draw.choices(range(1, 61), k=3))
        for _ in range(40)
    ]
    plan = make_plan(states, blocks=[24] * len(states), context=192, max_running=6)
    with Toy(plan) as toy:
        answers = [
            toy.submit(Request(str(n), prompt, greedy(max_tokens=8, ignore_eos=True)))
            for n, prompt in enumerate(prompts)
        ]
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.wait().tokens() == oracle(prompt, states, 8, banned=(0,))
        assert toy.engine.stats().prefix_hits > 0


def test_the_window_at_a_turns_end_outlives_those_before() -> None:
    """A long prompt's window blocks are gone when memory is short; not those that the next turn
    needs, nor, from the second time on, those where prompts part."""
    states: tuple[StateSpec, ...] = (FULL, Window(1, 8, 64))
    draw = random.Random(3)
    system = tuple(draw.choices(range(1, 61), k=200))
    users = [tuple(draw.choices(range(1, 61), k=100)) for _ in range(4)]
    with Toy(make_plan(states, blocks=[64, 12])) as toy:
        turn = system + users[0]
        assert cached(toy, turn, states) == 0
        noise = tuple(draw.choices(range(1, 61), k=230))
        cached(toy, noise, states)
        assert cached(toy, (*turn, 9, 9, 9, 9, 9), states) >= 288, "the turn's end is still there"
        assert cached(toy, system + users[1], states) <= 200
        cached(toy, noise[:120], states)
        assert cached(toy, system + users[2], states) in (192, 200), "where they part is too"
