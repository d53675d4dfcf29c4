"""A sliding window includes the current token (BC-47): distance W − 1 is seen, W is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from gristmill.backends.ops import Backend
from gristmill.files import open_model
from gristmill.models import build
from gristmill.types import Checkpoint, Window

from .export import export, random_model
from .runner import KV_DTYPE, Runner, error

WINDOW, TOKENS = 8, 41


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A gemma3 of one sliding layer."""
    config = transformers.Gemma3TextConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        max_position_embeddings=256,
        pad_token_id=0,
    )
    path: Path = tmp_path_factory.mktemp("model") / "m.gguf"
    export(random_model(config), path)
    return open_model(path)


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
    assert model.states() == [Window(1, 16, WINDOW)]
    ids = np.random.default_rng(5).integers(0, 50, TOKENS).tolist()

    def run(changed: int | None) -> np.ndarray:
        other = list(ids)
        if changed is not None:
            other[TOKENS - 1 - changed] = (other[TOKENS - 1 - changed] + 1) % 50
        return last_logits(Runner(backend, model, checkpoint, KV_DTYPE[backend_name]), other, sizes)

    same = run(None)
    assert np.array_equal(run(WINDOW), same)
    assert error(run(WINDOW - 1), same) > 1e-3


def test_all_paths_agree(checkpoint: Checkpoint, backend: Backend, backend_name: str) -> None:
    model = build(checkpoint)
    ids = np.random.default_rng(6).integers(0, 50, TOKENS).tolist()
    results = [
        last_logits(Runner(backend, model, checkpoint, KV_DTYPE[backend_name]), ids, sizes)
        for sizes in ([TOKENS], [3, 30, 7, 1], [1] * TOKENS)
    ]
    # the cpu back end promises equal bits; numpy's matrix products do not
    for other in results[1:]:
        assert error(other, results[0]) <= (0 if backend_name == "cpu" else 1e-6)
