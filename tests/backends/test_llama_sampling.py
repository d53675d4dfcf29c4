"""The sampling chain against llama.cpp's own samplers (``tests/golden/llama_sampling.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import backends
from gristmill.backends.ops import Backend
from gristmill.backends.reference import sampling, steps
from gristmill.types import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden" / "llama_sampling.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]

NAMES = {
    "top_k": ("top_k", ("top_k",)),
    "top_p": ("top_p", ("top_p", "min_keep")),
    "min_p": ("min_p", ("min_p", "min_keep")),
    "typical": ("typ_p", ("typical_p", "min_keep")),
    "temp_ext": ("temperature", ("temperature", "dynatemp_range", "dynatemp_exponent")),
    "xtc": ("xtc", ("xtc_probability", "xtc_threshold", "min_keep", None)),
    "top_n_sigma": ("top_n_sigma", ("top_n_sigma",)),
    "penalties": (
        "penalties",
        (None, "repeat_last_n", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    ),
    "dry": (
        "dry",
        (
            "dry_multiplier",
            "dry_base",
            "dry_allowed_length",
            "dry_penalty_last_n",
            "dry_breakers",
        ),
    ),
    "mirostat": ("mirostat_1", (None, None, "mirostat_tau", "mirostat_eta", None)),
    "mirostat_v2": ("mirostat_2", (None, "mirostat_tau", "mirostat_eta")),
    "adaptive_p": ("adaptive_p", ("adaptive_target", "adaptive_decay", None)),
}


def params_of(chain: list[tuple[str, list[Any]]], vocab: int) -> SamplingParams:
    """llama.cpp's samplers as our parameters."""
    values: dict[str, Any] = {}
    order: list[str] = []
    for theirs, arguments in chain:
        name, fields = NAMES[theirs]
        order.append(name)
        values.update({f: v for f, v in zip(fields, arguments, strict=True) if f is not None})
        if name.startswith("mirostat"):
            values["mirostat"] = int(name[-1])
    if "dry_breakers" in values:
        values["dry_breakers"] = tuple(map(tuple, values["dry_breakers"]))
    return SamplingParams(
        **values, samplers=tuple(order), logprobs=vocab, post_sampling=True, seed=1
    )


def probabilities(step: dict[str, Any]) -> dict[int, float]:
    """What llama.cpp left, with the probabilities a draw would have."""
    p = step.get("p")
    if p is None:
        left = np.array(step["left"])
        p = np.exp(left - left.max())
        p /= p.sum()
    return dict(zip(step["ids"], p, strict=True))


def close(ours: dict[int, float], theirs: dict[int, float]) -> None:
    for token in {*ours, *theirs}:
        assert theirs.get(token, 0) == pytest.approx(ours.get(token, 0), rel=2e-3, abs=2e-6)


SINGLE = [case for case in CASES if len(case["steps"]) == 1]
SELECTING = [case for case in CASES if len(case["steps"]) > 1]


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_what_a_chain_leaves(name: str) -> None:
    backend: Backend = backends.open(name)
    for case in SINGLE:
        (step,) = case["steps"]
        logits = np.array([step["logits"]], np.float32)
        vocab = logits.shape[1]
        chooser = backend.chooser(params_of(case["chain"], vocab), 1, vocab, case["history"])
        (choice,) = backend.choose(logits, [0], [chooser], [()])
        close({i: float(np.exp(v)) for i, v in choice.top}, probabilities(step))


def test_what_selects_and_learns() -> None:
    for case in SELECTING:
        vocab = len(case["steps"][0]["logits"])
        params = params_of(case["chain"], vocab)
        chooser = sampling.ReferenceChooser(params, 1, vocab, case["history"])
        for step in case["steps"]:
            logits = np.array(step["logits"], np.float32).astype(np.float64)
            state = steps.State.of(np.arange(vocab), logits)
            for place, each in enumerate(chooser.chain):
                steps.apply(state, each, place, chooser)
            close(dict(zip(state.ids.tolist(), state.p(), strict=True)), probabilities(step))
            steps.remember(state, step["selected"], chooser)
            chooser.accept(step["selected"])


def test_every_sampler_is_among_them() -> None:
    used = {name for case in CASES for name, _ in case["chain"]}
    assert used == set(NAMES)
