"""A sliding window includes the current token (BC-47): distance W − 1 is seen, W is not."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.backends.ops import Backend
from gristmill.models import build
from gristmill.types import Checkpoint, Window

from .golden import tiny
from .runner import KV_DTYPE, Runner, error

WINDOW, TOKENS = 8, 41


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A gemma3 of one sliding layer."""
    return tiny("tiny-gemma3-window", tmp_path_factory.mktemp("model")).checkpoint


def last_logits(runner: Runner, ids: list[int], sizes: list[int]) -> np.ndarray:
    """Logits after the last token, fed in pieces."""
    assert sum(sizes) == len(ids)
    got = np.zeros(0)
    for size in sizes:
        got, ids = runner.step({0: ids[:size]}, all_rows=False)[0], ids[size:]
    return got


@pytest.mark.parametrize(
    "sizes", [[TOKENS], [3, 30, 7, 1], [1] * TOKENS], ids=["one piece", "pieces", "decode"]
)
def test_the_border_of_the_window(
    sizes: list[int], checkpoint: Checkpoint, backend: Backend, backend_name: str
) -> None:
    model = build(checkpoint)
    assert model.states() == [Window(1, 8, WINDOW)]
    ids = np.random.default_rng(5).integers(0, 40, TOKENS).tolist()

    def run(changed: int | None) -> np.ndarray:
        other = list(ids)
        if changed is not None:
            other[TOKENS - 1 - changed] = (other[TOKENS - 1 - changed] + 1) % 40
        return last_logits(Runner(backend, model, checkpoint, KV_DTYPE[backend_name]), other, sizes)

    same = run(None)
    assert np.array_equal(run(WINDOW), same)
    assert error(run(WINDOW - 1), same) > 1e-3


def test_all_paths_agree(checkpoint: Checkpoint, backend: Backend, backend_name: str) -> None:
    model = build(checkpoint)
    ids = np.random.default_rng(6).integers(0, 40, TOKENS).tolist()
    results = [
        last_logits(Runner(backend, model, checkpoint, KV_DTYPE[backend_name]), ids, sizes)
        for sizes in ([TOKENS], [3, 30, 7, 1], [1] * TOKENS)
    ]
    # the cpu back end promises equal bits; numpy's matrix products do not
    for other in results[1:]:
        assert error(other, results[0]) <= (0 if backend_name == "cpu" else 1e-6)
