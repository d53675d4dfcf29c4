"""The native sampler behind ``Backend.choose`` against the specification, choice for choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.chain import LLAMA_SERVER, STEPS
from gristmill.backends.cpu import open_backend
from gristmill.backends.ops import F32, Backend, Choice
from gristmill.backends.reference import open_backend as open_reference
from gristmill.backends.reference import steps
from gristmill.backends.reference.sampling import ReferenceChooser
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

VOCAB = 5003


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Parameters of every kind, each on or off."""

    def maybe(on: float, off: float) -> float:
        return float(on if rng.random() < 0.5 else off)

    return SamplingParams(
        temperature=maybe(rng.uniform(0.1, 2), 0.0 if rng.random() < 0.3 else 1.0),
        top_k=int(maybe(int(rng.integers(1, 100)), 0)),
        top_p=maybe(rng.uniform(0.05, 1), 1.0),
        min_p=maybe(rng.uniform(0, 0.3), 0.0),
        typical_p=maybe(rng.uniform(0.05, 1), 1.0),
        repetition_penalty=maybe(rng.uniform(0.8, 1.5), 1.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        repeat_last_n=int(rng.integers(-1, 20)),
        logit_bias=((int(rng.integers(VOCAB)), -100.0), (int(rng.integers(VOCAB)), 4.0)),
        logprobs=int(rng.integers(0, 6)) if rng.random() < 0.5 else None,
    )


def random_chain(rng: np.random.Generator) -> SamplingParams:
    """Random parameters, and a random few of the steps that only llama-server has."""
    plain = random_params(rng)

    def some(*values: float) -> float:
        return float(rng.choice(values))

    names = [name for name in STEPS if not name.startswith("mirostat")]
    order = [str(name) for name in rng.choice(names, int(rng.integers(0, 9)))]
    listed = tuple(rng.integers(0, VOCAB, int(rng.integers(1, 50))).tolist())
    return replace(
        plain,
        samplers=tuple(order) if rng.random() < 0.6 else None,
        top_n_sigma=some(0.0, 0.7, 2.0),
        xtc_probability=some(0.0, 0.5, 1.0),
        xtc_threshold=some(0.01, 0.1, 0.3, 0.6),
        dynatemp_range=some(0.0, 0.0, 0.5, 3.0),
        dynatemp_exponent=some(1.0, 0.4, 2.0),
        mirostat=int(some(0, 0, 0, 1, 2)),
        mirostat_tau=some(2.0, 5.0, 9.0),
        mirostat_eta=some(0.1, 0.7),
        adaptive_target=some(-1.0, -1.0, 0.1, 0.6),
        adaptive_decay=some(0.0, 0.9, 5.0),
        min_keep=int(some(0, 0, 1, 3, 40)),
        dry_multiplier=some(0.0, 0.8, 20.0),
        dry_base=some(1.0, 1.75),
        dry_allowed_length=int(some(0, 1, 2)),
        dry_penalty_last_n=int(some(-1, 0, 5, 64)),
        dry_breakers=((3,), (4, 5), (4, 6, 1), (2, 2)),
        penalise_prompt=bool(rng.random() < 0.5),
        post_sampling=bool(rng.random() < 0.5),
        allowed_token_ids=listed if rng.random() < 0.1 else None,
        bad_words=((7,), (1, 2), (3, 3, 3)),
    )


def few_tokens(rng: np.random.Generator, count: int) -> list[int]:
    """Tokens of a small set, so that they repeat."""
    return rng.integers(0, 9, count).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_chains_equal_the_specification(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sides: tuple[Backend, Backend] = (open_backend(2), open_reference())
    for _ in range(25):
        rows = int(rng.integers(1, 5))
        logits = (rng.standard_normal((rows, VOCAB)) * rng.uniform(0.3, 6)).astype(np.float32)
        logits[:, :9] += 4 * float(rng.random() < 0.7)
        mask = rng.integers(0, 1 << 32, (VOCAB + 31) // 32, dtype=np.uint32)
        masks = [mask if rng.random() < 0.2 else None for _ in range(rows)]
        banned = [rng.integers(0, VOCAB, int(rng.integers(0, 4))).tolist() for _ in range(rows)]
        made = [
            (random_chain(rng), int(rng.integers(1 << 40)), few_tokens(rng, 30))
            for _ in range(rows)
        ]
        results = []
        for side in sides:
            choosers = [side.chooser(p, seed, VOCAB, prompt) for p, seed, prompt in made]
            results.append(
                [side.choose(logits, range(rows), choosers, banned, masks) for _ in range(4)]
            )
        for ours, theirs in zip(*results, strict=True):
            for a, b, (params, *_) in zip(ours, theirs, made, strict=True):
                assert a.token == b.token, params
                assert a.logprob == pytest.approx(b.logprob, abs=1e-5), params
                assert [t for t, _ in a.top] == [t for t, _ in b.top], params


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05},
                                    {"typical_p": 0.8}, {"xtc_probability": 0.6},
                                    {"mirostat": 1}, {"mirostat": 2}, {"dynatemp_range": 0.7},
                                    {"presence_penalty": 0.5}], ids=str)  # fmt: skip
def test_a_real_vocabulary(params: dict[str, Any]) -> None:
    vocab, rng = 151_936, np.random.default_rng(7)
    logits = (rng.standard_normal((1, vocab)) * 2.5).astype(np.float32)
    prompt = rng.integers(0, vocab, 300).tolist()
    sides: tuple[Backend, Backend] = (open_backend(1), open_reference())
    choosers = [side.chooser(SamplingParams(**params), 11, vocab, prompt) for side in sides]
    for _ in range(3):
        ours, theirs = (
            side.choose(logits, [0], [chooser], [[]])[0].token
            for side, chooser in zip(sides, choosers, strict=True)
        )
        assert ours == theirs


def test_choices_equal_the_specification() -> None:
    rng = np.random.default_rng(1)
    sides: tuple[Backend, Backend] = (open_backend(2), open_reference())
    for _ in range(40):
        rows = int(rng.integers(1, 9))
        logits = (rng.standard_normal((rows, VOCAB)) * rng.uniform(1, 8)).astype(np.float32)
        mask = rng.integers(0, 1 << 32, (VOCAB + 31) // 32, dtype=np.uint32)
        masks = [mask if rng.random() < 0.3 else None for _ in range(rows)]
        banned = [rng.integers(0, VOCAB, int(rng.integers(0, 4))).tolist() for _ in range(rows)]
        made = [
            (random_params(rng), int(rng.integers(1 << 40)), rng.integers(0, VOCAB, 30).tolist())
            for _ in range(rows)
        ]
        results = []
        for side in sides:
            choosers = [side.chooser(p, seed, VOCAB, prompt) for p, seed, prompt in made]
            results.append(
                [side.choose(logits, range(rows), choosers, banned, masks) for _ in range(3)]
            )
        for ours, theirs in zip(*results, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert a.token == b.token
                assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
                assert [t for t, _ in a.top] == [t for t, _ in b.top]


def test_rows_may_be_strided_and_repeated() -> None:
    wide = np.zeros((3, VOCAB + 16), np.float32)
    wide[2, 77] = 5
    backend = open_backend(1)
    params = SamplingParams(temperature=0)
    choosers = [backend.chooser(params, 0, VOCAB, []) for _ in range(2)]
    chosen = backend.choose(wide[:, :VOCAB], [2, 2], choosers, [[], [77]])
    assert [c.token for c in chosen] == [77, 0]


def test_logits_that_are_not_finite_end_the_engine() -> None:
    backend = open_backend(1)
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 9] = np.nan
    chooser = backend.chooser(SamplingParams(), 0, VOCAB, [])
    with pytest.raises(EngineError, match="finite"):
        backend.choose(logits, [0], [chooser], [[]])


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_where_all_that_is_allowed_is_minus_infinity(temperature: float) -> None:
    """The smallest allowed id; its log-probability is the raw one, if any logit is a number."""
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    some = logits.copy()
    some[0, 3] = 2.0
    mask = np.zeros((VOCAB + 31) // 32, np.uint32)
    mask[7] = 0b10110000
    params = SamplingParams(temperature=temperature, top_p=0.5, typical_p=0.7, min_p=0.1)
    asking = SamplingParams(temperature=temperature, logprobs=1)
    for side in (open_backend(1), open_reference()):

        def chosen(
            row: F32,
            params: SamplingParams,
            banned: list[int],
            mask: npt.NDArray[np.uint32] | None,
            side: Backend = side,
        ) -> Choice:
            chooser = side.chooser(params, 9, VOCAB, [5, 6])
            return side.choose(row, [0], [chooser], [banned], [mask])[0]

        assert chosen(logits, params, [], None).token == 0
        assert chosen(logits, params, [1, 0], None).token == 2
        assert chosen(logits, params, [7 * 32 + 4], mask).token == 7 * 32 + 5
        choice = chosen(some, asking, [3, 0], None)
        assert choice == Choice(1, -np.inf, ((3, 0.0),))
        with pytest.raises(EngineError, match="finite"):
            chosen(logits, asking, [], None)
        with pytest.raises(EngineError, match="finite"):
            side.logprobs(logits, [0], [1], 1)
        side.close()


def test_a_bias_beyond_the_vocabulary_is_the_clients_mistake() -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        open_backend(1).chooser(SamplingParams(logit_bias=((VOCAB, 1.0),)), 0, VOCAB, [])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.3},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"xtc_probability": 0.3, "xtc_threshold": 0.05, "temperature": 0.7},
        {"dynatemp_range": 0.9},
        {"top_n_sigma": 1.5},
        {"mirostat": 1, "mirostat_tau": 2.0},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"adaptive_target": 0.2},
        {"dry_multiplier": 1.0, "dry_allowed_length": 1},
    ],
    ids=str,
)
def test_draws_follow_the_chain(params: dict[str, Any]) -> None:
    """Over many seeds, by chi-square, against the probabilities that the chain leaves."""
    vocab, draws = 24, 6000
    logits = np.random.default_rng(5).normal(0, 1.5, (1, vocab)).astype(np.float32)
    prompt = [1, 2, 3, 1, 2]
    backend, asked = open_backend(1), SamplingParams(**params)
    counts = np.zeros(vocab)
    want = np.zeros(vocab)
    for seed in range(draws):
        chooser = backend.chooser(asked, seed, vocab, prompt)
        counts[backend.choose(logits, [0], [chooser], [()])[0].token] += 1
        if seed < 300:  # the coins of XTC differ by seed, the rest does not
            want += chain_probabilities(logits[0], asked, seed, prompt)
    if 0 < asked.xtc_probability < 1:
        always = replace(asked, xtc_probability=1.0)
        never = replace(asked, xtc_probability=0.0, samplers=LLAMA_SERVER)
        share = asked.xtc_probability
        want = share * chain_probabilities(logits[0], always, 0, prompt)
        want += (1 - share) * chain_probabilities(logits[0], never, 0, prompt)
    want *= draws / want.sum()
    assert (counts[want == 0] == 0).all()
    alive = want > 5
    chi = float(((counts - want)[alive] ** 2 / want[alive]).sum())
    freedom = int(alive.sum()) - 1
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


def chain_probabilities(
    row: F32, params: SamplingParams, seed: int, prompt: list[int]
) -> npt.NDArray[np.float64]:
    """What the specification's chain leaves, over the vocabulary."""
    chooser = ReferenceChooser(params, seed, len(row), prompt)
    state = steps.State.of(np.arange(len(row)), row.astype(np.float64))
    for place, name in enumerate(chooser.chain):
        steps.apply(state, name, place, chooser)
    found = np.zeros(len(row))
    found[state.ids] = state.p()
    return found


def test_equal_alone_and_in_a_crowd() -> None:
    """The state of an answer is its own: mirostat, adaptive-p, coins, repetitions."""
    rng = np.random.default_rng(3)
    kinds: list[dict[str, Any]] = [
        {"mirostat": 2},
        {"adaptive_target": 0.3},
        {"xtc_probability": 0.5},
        {"mirostat": 1},
    ]
    logits = (rng.standard_normal((6, 8, VOCAB)) * 2).astype(np.float32)
    backend = open_backend(2)

    def choosers() -> list[Any]:
        return [
            backend.chooser(SamplingParams(**kinds[i % 4], dry_multiplier=1.0), i, VOCAB, [1, 2])
            for i in range(8)
        ]

    crowd = choosers()
    together = [
        [c.token for c in backend.choose(step, range(8), crowd, [()] * 8)] for step in logits
    ]
    for i, chooser in enumerate(choosers()):
        alone = [backend.choose(step, [i], [chooser], [()])[0].token for step in logits]
        assert alone == [step[i] for step in together]
