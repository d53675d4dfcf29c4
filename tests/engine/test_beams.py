"""Beam search against one that is worked out with no engine, and against all answers there are."""

from __future__ import annotations

import hashlib
from itertools import product

import numpy as np
import pytest

from gristmill.errors import RequestError
from gristmill.types import Request, SamplingParams
from tests.engine.fakes import EOS, VOCAB, Toy, greedy, make_plan, text_of

PROMPT = tuple(range(1, 50))


def logprobs(tokens: tuple[int, ...]) -> np.ndarray:
    """The toy's, of the token after these."""
    seen = hashlib.blake2b(digest_size=8)
    seen.update(np.array([(t, p) for p, t in enumerate(tokens)], np.int32).tobytes())
    random = np.random.default_rng(int.from_bytes(seen.digest(), "little"))
    raw = random.normal(0, 2, VOCAB).astype(np.float32).astype(np.float64)
    return raw - np.log(np.exp(raw).sum())


def searched(
    width: int, most: int, penalty: float, ends: tuple[int, ...]
) -> list[tuple[tuple[int, ...], float]]:
    """Every step to the end, with nothing left out."""
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[tuple[tuple[int, ...], float]] = []
    for _ in range(most):
        longer: list[tuple[tuple[int, ...], float]] = [
            ((*tokens, int(token)), total + float(scores[token]))
            for tokens, total in live
            for scores in [logprobs((*PROMPT, *tokens))]
            for token in np.argsort(-scores)[: 2 * width]
        ]
        done += [each for each in longer if each[0][-1] in ends]
        live = sorted((each for each in longer if each[0][-1] not in ends), key=lambda e: -e[1])
        live = live[:width]
    ranked = [(tokens, total / len(tokens) ** penalty) for tokens, total in done + live]
    return sorted(ranked, key=lambda each: -each[1])


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize(("width", "most"), [(1, 6), (3, 1), (3, 12), (5, 7)])
def test_the_answers_of_a_search(width: int, most: int, penalty: float, cache: bool) -> None:
    ends = (EOS, 7, 8, 9, 10, 11)
    params = SamplingParams(max_tokens=most, stop_token_ids=ends[1:], logprobs=2)
    expected = searched(width, most, penalty, ends)
    with Toy(make_plan(prefix_cache=cache)) as toy:
        request = Request("b", PROMPT, params, n=width, beams=width, length_penalty=penalty)
        answer = toy.ask(request)
        for index in range(width):
            tokens, score = expected[index]
            assert answer.tokens(index) == tokens
            last = answer.last(index)
            assert last.finish == ("stop" if tokens[-1] in ends else "length")
            assert sum(each.logprob for each in last.logprobs) / len(tokens) ** penalty == (
                pytest.approx(score, rel=1e-5)
            )
            shown = tokens[:-1] if tokens[-1] in ends else tokens
            assert answer.text(index) == "".join(map(text_of, shown))
        stats = toy.engine.stats()
        assert stats.requests == 1 and stats.prompt_tokens == len(PROMPT)
        if cache and most > 4:
            assert stats.computed_tokens < len(PROMPT) + 5 * width * most


def test_a_wide_search_finds_the_likeliest_of_all() -> None:
    best = max(
        product(range(1, 61), repeat=2),
        key=lambda two: logprobs(PROMPT)[two[0]] + logprobs((*PROMPT, two[0]))[two[1]],
    )
    params = SamplingParams(max_tokens=2, ignore_eos=True, logit_bias=())
    with Toy() as toy:
        got = toy.ask(Request("b", PROMPT, params, n=1, beams=60)).tokens()
    total = [logprobs(PROMPT)[two[0]] + logprobs((*PROMPT, two[0]))[two[1]] for two in (best, got)]
    assert total[1] >= total[0] - 1e-6


def test_a_search_among_others_and_in_little_memory() -> None:
    expected = searched(4, 10, 1.0, (EOS,))
    with Toy(make_plan(blocks=[16], max_running=5)) as toy:
        others = [
            toy.submit(Request(str(n), (n + 1,) * 30, greedy(max_tokens=40, ignore_eos=True)))
            for n in range(6)
        ]
        search = toy.submit(Request("b", PROMPT, greedy(max_tokens=10), n=4, beams=4))
        search.wait()
        assert [search.tokens(index) for index in range(4)] == [each[0] for each in expected[:4]]
        for other in others:
            other.wait()


def test_abort_ends_a_search() -> None:
    with Toy(make_plan(context=4096, blocks=[600])) as toy:
        params = greedy(max_tokens=3000, ignore_eos=True)
        search = toy.submit(Request("b", PROMPT, params, n=2, beams=3))
        while toy.engine.stats().steps < 5:
            pass
        toy.engine.abort("b")
        search.wait()
        assert [search.last(index).finish for index in range(2)] == ["abort", "abort"]
        again = toy.ask(Request("b", PROMPT, greedy(max_tokens=2), n=2, beams=2))
        assert again.last().finish in ("stop", "length")
        assert toy.used() == [0]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"stop": ("x",)}, "stop"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_a_search_cannot_honour(more: dict[str, object], field: str) -> None:
    with Toy() as toy, pytest.raises(RequestError) as caught:
        toy.submit(Request("b", PROMPT, greedy(**more), n=2, beams=2))
    assert caught.value.param == field


def test_more_answers_than_beams() -> None:
    with Toy() as toy, pytest.raises(RequestError):
        toy.submit(Request("b", PROMPT, greedy(), n=3, beams=2))
