"""An answer that is longer than its context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gristmill.types import Request, StateSpec, Window
from tests.engine.fakes import FULL, Toy, greedy, make_plan, oracle


def shifted(
    prompt: tuple[int, ...],
    states: tuple[StateSpec, ...],
    count: int,
    context: int,
    keep: int,
    discard: int,
) -> tuple[int, ...]:
    """What comes of it, worked out without an engine."""
    tokens, answer = list(prompt), list[int]()
    for _ in range(count):
        answer.append(oracle(tokens, states, 1, banned=(0,))[0])
        tokens.append(answer[-1])
        if len(tokens) >= context:
            kept = min(len(prompt) if keep < 0 else keep, len(tokens) - 4)
            gone = min(discard or (len(tokens) - kept) // 2, len(tokens) - kept - 1)
            del tokens[kept : kept + gone]
    return tuple(answer)


@pytest.mark.parametrize("states", [(FULL,), (FULL, Window(1, 8, 40))])
@pytest.mark.parametrize(("keep", "discard"), [(0, 0), (5, 0), (-1, 0), (40, 7), (1000, 1000)])
def test_an_answer_goes_on_without_the_older_half(
    states: tuple[StateSpec, ...], keep: int, discard: int
) -> None:
    plan = replace(make_plan(states, context=96, step_tokens=32), context_shift=True)
    prompts = [tuple(range(first, first + 50)) for first in (1, 3, 8)]
    count = 20 if keep == 1000 else 150
    with Toy(plan) as toy:
        answers = [
            toy.submit(
                Request(
                    str(number),
                    prompt,
                    greedy(max_tokens=50 + count, ignore_eos=True),
                    keep=keep,
                    discard=discard,
                )
            )
            for number, prompt in enumerate(prompts)
        ]
        for prompt, answer in zip(prompts, answers, strict=True):
            answer.wait()
            assert answer.tokens() == shifted(prompt, states, 50 + count, 96, keep, discard)
            last = answer.last()
            assert last.finish == "length" and last.timings is not None
            assert last.timings.dropped_tokens > 0
            assert last.timings.generated_tokens == 50 + count


def test_without_it_the_context_ends_the_answer() -> None:
    with Toy(make_plan(context=96)) as toy:
        answer = toy.ask(Request("r", tuple(range(1, 51)), greedy(ignore_eos=True)))
        assert len(answer.tokens()) == 46 and answer.last().finish == "length"
        assert answer.last().timings is not None
