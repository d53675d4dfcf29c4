"""A Hugging Face folder and the GGUF file of the same model: one model, the same bits."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill import backends
from gristmill.errors import FormatError, UnsupportedError
from gristmill.files import open_model
from gristmill.models import build, understand

from .runner import Runner, error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from .export import export, random_model  # noqa: E402
from .test_transformers import COMMON, CONFIGS  # noqa: E402

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MORE = {
    "llama3": transformers.LlamaConfig(**COMMON | {"head_dim": 16}, rope_parameters=LLAMA3),
    "qwen3-yarn": transformers.Qwen3Config(**COMMON | {"head_dim": 16}, rope_parameters=YARN),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=11),
}


def logits(path: Path, backend: str, ids: list[int]) -> np.ndarray:
    checkpoint = understand(open_model(path))
    model = build(checkpoint)
    with_backend = backends.open(backend)
    try:
        runner = Runner(with_backend, model, checkpoint, "f32")
        return runner.step({0: ids})[0]
    finally:
        with_backend.close()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_same_bits_as_gguf(name: str, bf16: bool, tmp_path: Path) -> None:
    """The same numbers in both: nothing but names and the order of rows differs."""
    oracle = random_model(deepcopy(CONFIGS[name])).to(torch.bfloat16 if bf16 else torch.float32)
    oracle.save_pretrained(tmp_path / "folder", max_shard_size="20KB")
    assert len(list((tmp_path / "folder").glob("*.safetensors"))) > 1
    export(oracle, tmp_path / "tiny.gguf", bf16)
    ids = np.random.default_rng(1).integers(0, COMMON["vocab_size"], 75).tolist()
    here = logits(tmp_path / "folder", "cpu", ids)
    there = logits(tmp_path / "tiny.gguf", "cpu", ids)
    assert np.array_equal(here, there)


@pytest.mark.parametrize("name", [*CONFIGS, *MORE])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_as_transformers(name: str, dtype: str, tmp_path: Path) -> None:
    """The folder alone, as its own library computes it."""
    oracle = random_model(deepcopy({**CONFIGS, **MORE}[name])).to(getattr(torch, dtype))
    oracle.save_pretrained(tmp_path)
    # Loaded anew: tables that it makes itself were rounded with the weights.
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float64, attn_implementation="eager"
    )
    ids = np.random.default_rng(2).integers(0, COMMON["vocab_size"], 75)
    with torch.no_grad():
        wanted = oracle(torch.from_numpy(ids[None])).logits[0].numpy()
    got = logits(tmp_path, "reference", ids.tolist())
    assert error(got, wanted) < 1e-4


def test_a_window_as_every_layer_has_it(tmp_path: Path) -> None:
    random_model(deepcopy(MORE["mistral"])).save_pretrained(tmp_path)
    assert all(build(understand(open_model(tmp_path))).config.local)


def changed(tmp_path: Path, **changes: Any) -> Path:
    config = CONFIGS["llama"].__class__(**CONFIGS["llama"].to_dict() | changes)
    random_model(deepcopy(CONFIGS["llama"])).save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "error_type", "says"),
    [
        ({"hidden_act": "relu"}, UnsupportedError, "activation 'relu'"),
        ({"num_hidden_layers": 4}, FormatError, "block_count"),
        ({"intermediate_size": 71}, FormatError, "ffn_gate"),
        ({"tie_word_embeddings": True}, None, ""),
    ],
)
def test_a_config_that_disagrees(
    tmp_path: Path, changes: dict[str, Any], error_type: type[Exception] | None, says: str
) -> None:
    path = changed(tmp_path, **changes)
    if error_type is None:
        build(understand(open_model(path)))
        return
    with pytest.raises(error_type, match=says):
        build(understand(open_model(path)))
