"""Log-probabilities of prompts that were asked for before: the same, and not computed again."""

from __future__ import annotations

import random

import pytest

from gristmill.types import Request, StateSpec, TokenLogprob, Window
from tests.engine.fakes import FULL, Toy, greedy, make_plan

Scores = tuple[TokenLogprob | None, ...]


def score(
    toy: Toy, prompt: tuple[int, ...], top: int = 2, salt: str = "", tokens: int = 3
) -> tuple[Scores, int]:
    params = greedy(max_tokens=tokens, prompt_logprobs=top)
    before = toy.engine.stats().computed_tokens
    answer = toy.ask(Request("r", prompt, params, cache_salt=salt))
    told = next(delta.prompt_logprobs for delta in answer.deltas[0] if delta.prompt_logprobs)
    return told, toy.engine.stats().computed_tokens - before


@pytest.mark.parametrize("states", [(FULL,), (FULL, Window(1, 8, 40))])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_prompt_is_scored_once(states: tuple[StateSpec, ...], tokens: int) -> None:
    draw = random.Random(3)
    prompt = tuple(draw.choices(range(1, 61), k=200))
    others = [prompt[:cut] + tuple(draw.choices(range(1, 61), k=30)) for cut in (0, 64, 130, 192)]
    with Toy(make_plan(states, prefix_cache=False)) as toy:
        plain = {each: score(toy, each, tokens=tokens)[0] for each in [prompt, *others]}
        fewer = score(toy, prompt, 1, tokens=tokens)[0]
        more = score(toy, prompt, 5, tokens=tokens)[0]
    with Toy(make_plan(states)) as toy:
        got, first = score(toy, prompt, tokens=tokens)
        assert got == plain[prompt] and first >= len(prompt)
        got, again = score(toy, prompt, tokens=tokens)
        assert got == plain[prompt] and again <= 50, "the last block and the answer"
        assert score(toy, prompt, 1, tokens=tokens)[0] == fewer
        for each in others:
            assert score(toy, each, tokens=tokens)[0] == plain[each]
        got, afresh = score(toy, prompt, 5, tokens=tokens)
        assert got == more and afresh >= len(prompt), "fewer alternatives were known"
        got, salted = score(toy, prompt, salt="s", tokens=tokens)
        assert got == plain[prompt] and salted >= len(prompt)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 65])
def test_prompts_of_any_length(length: int) -> None:
    prompt = tuple(random.Random(length).choices(range(1, 61), k=length))
    with Toy() as toy:
        first = score(toy, prompt)[0]
        assert score(toy, prompt)[0] == first and len(first) == length
        assert score(toy, prompt)[0] == first
