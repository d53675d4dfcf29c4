"""The sampler's specification, against ``transformers``' warpers and against counting."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import backends
from gristmill.backends.reference import sampling
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

VOCAB = 70
F32 = npt.NDArray[np.float32]


def row(seed: int, spread: float = 3.0) -> F32:
    """Random logits."""
    return (np.random.default_rng(seed).normal(size=VOCAB) * spread).astype(np.float32)


def draw(
    logits: F32,
    n: int = 1,
    banned: tuple[int, ...] = (),
    mask: npt.NDArray[np.uint32] | None = None,
    prompt: tuple[int, ...] = (),
    seed: int = 0,
    **params: Any,
) -> list[int]:
    """The first choice of ``n`` answers whose seeds follow one another."""
    backend = backends.open("reference")
    choosers = [
        backend.chooser(SamplingParams(**params), seed + i, len(logits), prompt) for i in range(n)
    ]
    choices = backend.choose(logits[None], [0] * n, choosers, [banned] * n, [mask] * n)
    return [choice.token for choice in choices]


def support(logits: F32, **params: Any) -> set[int]:
    """The tokens that can be chosen at all, by the truncation itself."""
    ids = np.lexsort((np.arange(len(logits)), -logits))
    kept, _ = sampling.truncate(ids, logits[ids].astype(np.float64), SamplingParams(**params))
    return set(kept.tolist())


# ---------------------------------------------------------- random numbers


def test_mix_is_splitmix64() -> None:
    # the published generator's first outputs for the seed 1234567
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        outputs.append(sampling.mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniform_is_even_and_never_one() -> None:
    values = [sampling.uniform(s, n) for s in (-1, 0, 1, 2**63) for n in range(2500)]
    assert min(values) >= 0 and max(values) < 1
    counts, _ = np.histogram(values, 20, (0, 1))
    assert abs(counts - 500).max() < 110
    assert len(set(values)) == len(values)


def test_a_seed_alone_decides() -> None:
    logits = row(1)
    assert draw(logits, 40, seed=5) == draw(logits, 40, seed=5)
    assert draw(logits, 40, seed=5) != draw(logits, 40, seed=6)
    assert draw(logits, 40, seed=5)[1:] == draw(logits, 39, seed=6)


def test_draws_follow_the_distribution() -> None:
    logits = row(2, 1.0)
    p = torch.softmax(torch.from_numpy(logits).double() / 1.7, 0).numpy()
    n = 20000
    counts = np.bincount(draw(logits, n, temperature=1.7), minlength=VOCAB)
    assert (np.abs(counts - n * p) < 5 * np.sqrt(n * p) + 5).all()


def test_the_stream_moves_on_with_every_token() -> None:
    backend = backends.open("reference")
    chooser = backend.chooser(SamplingParams(), 3, VOCAB, [1, 2, 3])
    got = [backend.choose(row(1)[None], [0], [chooser], [()])[0].token for _ in range(30)]
    u = [sampling.uniform(3, n) for n in range(30)]
    cdf = np.cumsum(np.exp(row(1).astype(np.float64)))
    assert got == [int(np.searchsorted(cdf / cdf[-1], x, side="right")) for x in u]


# -------------------------------------------------------------- truncation

WARPERS: dict[str, Any] = {
    "top_k": hf.TopKLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
    "typical_p": hf.TypicalLogitsWarper,
}


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": VOCAB},
        {"top_p": 0.9},
        {"top_p": 0.31},
        {"top_p": 1e-4},
        {"min_p": 0.05},
        {"min_p": 0.9},
        {"typical_p": 0.5},
        {"typical_p": 0.93},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.9, "top_k": 33, "typical_p": 0.9, "top_p": 0.8, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_tokens_survive_as_with_transformers(seed: int, params: dict[str, Any]) -> None:
    logits = row(seed)
    chain = hf.LogitsProcessorList(
        [hf.TemperatureLogitsWarper(float(params.get("temperature", 1.0)))]
    )
    for name in ("top_k", "typical_p", "top_p", "min_p"):
        if name in params:
            chain.append(WARPERS[name](params[name]))
    out = chain(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(logits)[None].double())
    assert support(logits, **params) == set(torch.nonzero(out[0] > -math.inf)[:, 0].tolist())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-12, 1e-7, 1e-4, 0.1, 1.0, 5.0, 1e6]),
    st.sampled_from([-1, 0, 1, 3, 1000]),
    st.sampled_from([0.0, 1e-4, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from([0.0, 0.2, 1.0]),
)
def test_extreme_parameters_leave_a_token(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    params: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    kept = support(row(seed), **params, typical_p=typical_p)
    assert kept
    greedy = int(row(seed).argmax())
    if typical_p == 1:
        assert greedy in kept
    if top_k == 1 or (typical_p == 1 and (temperature < 1e-6 or top_p == 0 or min_p >= 1)):
        assert draw(row(seed), 3, **params, typical_p=typical_p) == [greedy] * 3


def test_greedy_takes_the_smaller_of_equal_ids() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[9, 4, 60]] = 1
    assert draw(logits, temperature=0) == [4]
    assert support(logits, top_k=2) == {4, 9}
    assert support(logits, temperature=0.001, top_p=0.6) == {4, 9}


# ---------------------------------------------- bias, bans, masks, penalties


def test_bias_bans_and_forces() -> None:
    logits = row(3)
    best = int(logits.argmax())
    assert best not in draw(logits, 200, logit_bias=((best, -100.0),))
    assert draw(logits, temperature=0, logit_bias=((best, -100.0),)) != [best]
    assert draw(logits, 50, logit_bias=((11, 100.0),)) == [11] * 50
    assert draw(logits, temperature=0, logit_bias=((11, 60.0), (11, 40.0))) == [11]


@pytest.mark.parametrize("token", [-1, VOCAB, 999999])
def test_bias_beyond_the_vocabulary(token: int) -> None:
    with pytest.raises(RequestError) as caught:
        draw(row(0), logit_bias=((token, 1.0),))
    assert caught.value.param == "logit_bias"


def test_masks_and_bans_meet() -> None:
    logits, rng = row(4), np.random.default_rng(4)
    allowed = set(rng.choice(VOCAB, 9, replace=False).tolist())
    mask = np.zeros(-(-VOCAB // 32), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    banned = tuple(sorted(allowed)[:4])
    assert set(draw(logits, 400, mask=mask, temperature=50.0)) == allowed
    assert set(draw(logits, 400, banned, mask, temperature=50.0)) == allowed - set(banned)
    assert set(draw(logits, 400, tuple(allowed), mask, temperature=50.0)) == allowed
    everything = tuple(range(VOCAB))
    assert draw(logits, banned=everything, temperature=0) == [int(logits.argmax())]
    assert draw(logits, mask=np.zeros_like(mask), temperature=0) == [int(logits.argmax())]


def test_repetition_penalty_as_transformers() -> None:
    logits, history = row(5), (3, 3, 50, 7, 20)
    ids = torch.tensor([history])
    want = hf.RepetitionPenaltyLogitsProcessor(1.4)(ids, torch.from_numpy(logits)[None].double())[0]
    chooser = sampling.ReferenceChooser(SamplingParams(repetition_penalty=1.4), 0, VOCAB, history)
    got = sampling.penalised(logits.astype(np.float64), chooser)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


@pytest.mark.parametrize("last", [-1, 0, 1, 3, 4, 100])
def test_penalties_look_back_so_far(last: int) -> None:
    logits, history = row(6).astype(np.float64), [3, 3, 50, 7, 3]
    params = SamplingParams(presence_penalty=0.7, frequency_penalty=0.25, repeat_last_n=last)
    chooser = sampling.ReferenceChooser(params, 0, VOCAB, history[:3])
    for token in history[3:]:
        chooser.accept(token)
    want = logits.copy()
    seen = history if last < 0 else history[max(0, 5 - last) :]
    for token, count in Counter(seen).items():
        want[token] -= 0.7 + 0.25 * count
    np.testing.assert_allclose(sampling.penalised(logits, chooser), want, rtol=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_an_engine_error(value: float) -> None:
    logits = row(7)
    logits[5] = value
    with pytest.raises(EngineError):
        draw(logits)


# ---------------------------------------------------------------- logprobs


def test_logprobs_are_raw() -> None:
    backend = backends.open("reference")
    logits = np.stack([row(8), row(9)])
    want = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    params = SamplingParams(temperature=0.3, top_k=2, logit_bias=((5, 50.0),), logprobs=4)
    chooser = backend.chooser(params, 0, VOCAB, [])
    (choice,) = backend.choose(logits, [1], [chooser], [()])
    assert choice.token == 5
    assert choice.logprob == pytest.approx(want[1, 5])
    order = np.argsort(-want[1])[:4]
    assert [i for i, _ in choice.top] == order.tolist()
    assert [p for _, p in choice.top] == pytest.approx(want[1, order])
    got = backend.logprobs(logits, [1, 0, 0], [2, 3, 69], 2)
    assert [c.logprob for c in got] == pytest.approx([want[1, 2], want[0, 3], want[0, 69]])
    assert all(len(c.top) == 2 for c in got)


def test_no_logprobs_unless_asked() -> None:
    backend = backends.open("reference")
    (choice,) = backend.choose(
        row(1)[None], [0], [backend.chooser(SamplingParams(), 0, VOCAB, [])], [()]
    )
    assert (choice.logprob, choice.top) == (0.0, ())
