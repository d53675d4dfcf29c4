"""A tiny random model of each architecture against ``transformers`` in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.ops import Backend
from gristmill.files import open_model
from gristmill.models import Model, build
from gristmill.types import Checkpoint

from .runner import KV_DTYPE, TOLERANCE, Runner, error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .export import export, random_model  # noqa: E402

TOKENS = 75
SEQUENCES = 3

COMMON = {
    "vocab_size": 101,
    "hidden_size": 42,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**COMMON),
    "llama-biases-tied": transformers.LlamaConfig(
        **COMMON, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama-one-head": transformers.LlamaConfig(
        **COMMON | {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20}
    ),
    "qwen2": transformers.Qwen2Config(**COMMON | {"hidden_size": 48}, rope_theta=1e6),
    "qwen3": transformers.Qwen3Config(**COMMON | {"head_dim": 12}, tie_word_embeddings=True),
    "gemma3": transformers.Gemma3TextConfig(
        **COMMON | {"num_hidden_layers": 7, "num_key_value_heads": 1, "head_dim": 16},
        sliding_window=9,
        query_pre_attn_scalar=16,
    ),
    "gemma3-wide-window": transformers.Gemma3TextConfig(
        **COMMON | {"num_hidden_layers": 6},
        sliding_window=40,
        query_pre_attn_scalar=8,
        final_logit_softcapping=7.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}


@dataclass
class Case:
    """One model, its tokens [SEQUENCES, TOKENS] and the logits that transformers gives."""

    checkpoint: Checkpoint
    model: Model
    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float64]


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Each architecture, exported and run by transformers once."""
    oracle = random_model(CONFIGS[request.param])
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    export(oracle, path)
    ids = np.random.default_rng(1).integers(0, COMMON["vocab_size"], (SEQUENCES, TOKENS))
    with torch.no_grad():
        logits = oracle(torch.from_numpy(ids)).logits.numpy()
    checkpoint = open_model(path)
    return Case(checkpoint, build(checkpoint), ids, logits)


@pytest.fixture
def runner(case: Case, backend: Backend, backend_name: str) -> Runner:
    """A fresh memory for the case."""
    return Runner(backend, case.model, case.checkpoint, KV_DTYPE[backend_name])


def test_prefill_in_one_piece(case: Case, runner: Runner, backend_name: str) -> None:
    (got,) = runner.step({0: case.ids[0].tolist()})
    assert got.dtype == np.float32
    assert error(got, case.logits[0]) < TOLERANCE[backend_name]


@pytest.mark.parametrize("sizes", [(1, 7, 33, 3, 31), (32, 1, 32, 10), (64, 11)])
def test_prefill_in_chunks(
    case: Case, runner: Runner, backend_name: str, sizes: tuple[int, ...]
) -> None:
    assert sum(sizes) == TOKENS
    done = 0
    for size in sizes:
        (got,) = runner.step({4: case.ids[0, done : done + size].tolist()})
        assert error(got, case.logits[0, done : done + size]) < TOLERANCE[backend_name]
        done += size


def test_decode(case: Case, runner: Runner, backend_name: str) -> None:
    got = [runner.step({0: case.ids[0, :5].tolist()}, all_rows=False)[0]]
    got += [runner.step({0: [int(i)]})[0] for i in case.ids[0, 5:]]
    assert error(np.concatenate(got), case.logits[0, 4:]) < TOLERANCE[backend_name]


def test_crowd_of_prefills_and_decodes(case: Case, runner: Runner, backend_name: str) -> None:
    sizes = np.random.default_rng(2)
    done = [0] * SEQUENCES
    while min(done) < TOKENS:
        spans: dict[int, list[int]] = {}
        for s in sizes.permutation(SEQUENCES).tolist():
            n = min(TOKENS - done[s], int(sizes.choice([0, 1, 1, 5, 13])))
            if n:
                spans[s] = case.ids[s, done[s] : done[s] + n].tolist()
        if not spans:
            continue
        for s, got in zip(spans, runner.step(spans), strict=True):
            want = case.logits[s, done[s] : done[s] + len(spans[s])]
            assert error(got, want) < TOLERANCE[backend_name]
            done[s] += len(spans[s])


def test_only_wanted_rows_have_logits(case: Case, runner: Runner, backend_name: str) -> None:
    got = runner.step({0: case.ids[0].tolist(), 1: case.ids[1].tolist()}, all_rows=False)
    assert [len(rows) for rows in got] == [1, 1]
    want = case.logits[:2, -1]
    assert error(np.concatenate(got), want) < TOLERANCE[backend_name]


def test_a_tied_head_is_packed_once(case: Case) -> None:
    names = [wanted.name for wanted in case.model.wanted()]
    tied = "output.weight" not in case.checkpoint.tensors
    assert len(names) == len(set(names))
    assert ("output.weight" in names) is not tied
