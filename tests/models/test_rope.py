"""Every RoPE scaling that GGUF can name, against Hugging Face's formulas (BC-45)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.backends.ops import Backend
from gristmill.errors import FormatError, UnsupportedError
from gristmill.files import open_model
from gristmill.models import build
from gristmill.types import RawTensor

from .runner import KV_DTYPE, Runner, error

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")

from .export import export, random_model  # noqa: E402

HEAD_DIM = 32
FAR = 9000
_PAIRS = np.arange(HEAD_DIM // 2)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "original_max_position_embeddings": 4096}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "long_factor": (1 + 0.7 * _PAIRS).tolist(),
    "short_factor": (1 + 0.03 * _PAIRS).tolist(),
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.5},
    "llama3-8": LLAMA3 | {"factor": 8.0},
    "llama3-32": LLAMA3 | {"factor": 32.0},
    "yarn": YARN | {"factor": 4.0},
    "yarn-parameters": YARN
    | {"factor": 2.5, "attention_factor": 1.3, "beta_fast": 20.0, "beta_slow": 2.0},
    "longrope": LONG,
}


def config(scaling: str, architecture: type = transformers.LlamaConfig, **more: Any):
    """A one-layer model of a few heads."""
    values: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 2 * HEAD_DIM,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 16384,
        "rope_parameters": dict(SCALINGS[scaling]),
    }
    return architecture(**values | more)


def formula(hf: Any, length: int) -> tuple[np.ndarray, float]:
    """Hugging Face's frequencies and attention factor for a sequence of ``length``."""
    kind = hf.rope_parameters["rope_type"]
    if kind == "default":
        base = hf.rope_parameters["rope_theta"]
        return base ** (-2.0 * _PAIRS / HEAD_DIM), 1.0
    frequencies, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](
        hf, torch.device("cpu"), seq_len=length
    )
    return frequencies.double().numpy(), float(factor)


@pytest.mark.parametrize("architecture", [transformers.LlamaConfig, transformers.Qwen3Config])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies(scaling: str, architecture: type, tmp_path: Path) -> None:
    hf = config(scaling, architecture)
    export(random_model(hf), tmp_path / "m.gguf")
    if scaling.startswith("llama3") and architecture is transformers.Qwen3Config:
        pytest.skip("only llama's converter writes the factors")
    checkpoint = open_model(tmp_path / "m.gguf")
    for context in (None, 40):
        rope = build(checkpoint, context).config.rope
        frequencies, factor = formula(hf, context or 16384)
        np.testing.assert_allclose(rope.inv_freq, frequencies, rtol=1e-6)
        assert rope.scale == pytest.approx(factor, rel=1e-6)
        assert rope.style == ("pairs" if hf.model_type == "llama" else "half")


def test_llama3_factors_come_from_the_tensor_alone(tmp_path: Path) -> None:
    export(random_model(config("llama3-8")), tmp_path / "with.gguf")
    checkpoint = open_model(tmp_path / "with.gguf")
    tensors = {k: v for k, v in checkpoint.tensors.items() if k != "rope_freqs.weight"}
    scaled = build(checkpoint).config.rope
    plain = build(replace(checkpoint, tensors=tensors)).config.rope
    assert scaled.inv_freq != plain.inv_freq
    np.testing.assert_allclose(plain.inv_freq, 500000.0 ** (-2 * _PAIRS / HEAD_DIM))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["default", "linear", "llama3-8", "llama3-32", "yarn"])
def test_logits_at_position_9000(
    scaling: str, tmp_path: Path, backend: Backend, backend_name: str
) -> None:
    hf = config(scaling)
    oracle = random_model(hf)
    export(oracle, tmp_path / "m.gguf")
    checkpoint = open_model(tmp_path / "m.gguf")
    ids = np.random.default_rng(3).integers(0, 61, FAR + 1)
    runner = Runner(backend, build(checkpoint), checkpoint, KV_DTYPE[backend_name], blocks=300)
    past = transformers.DynamicCache()
    for start in range(0, FAR + 1, 600):
        chunk = ids[start : start + 600]
        (got,) = runner.step({0: chunk.tolist()})
        with torch.no_grad():
            want = oracle(torch.from_numpy(chunk)[None], cache=past).logits[0].numpy()
        # transformers' angles are float32 products: at position p off by p * 6e-8
        assert error(got, want) < max(1e-4, (start + 600) * 3e-7), start


@pytest.mark.parametrize(("served", "length"), [(None, 75), (64, 60)])
def test_longrope_logits(
    served: int | None, length: int, tmp_path: Path, backend: Backend, backend_name: str
) -> None:
    oracle = random_model(config("longrope"))
    export(oracle, tmp_path / "m.gguf")
    checkpoint = open_model(tmp_path / "m.gguf")
    ids = np.random.default_rng(4).integers(0, 61, length)
    with torch.no_grad():
        want = oracle(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = build(checkpoint, served)
    runner = Runner(backend, model, checkpoint, KV_DTYPE[backend_name])
    (got,) = runner.step({0: ids.tolist()})
    assert error(got, want) < 1e-4
    if served is None:
        short = Runner(backend, build(checkpoint, 64), checkpoint, KV_DTYPE[backend_name])
        assert error(short.step({0: ids.tolist()})[0], want) > 1e-2


@pytest.mark.parametrize("name", ["dynamic", "su", "LINEAR", ""])
def test_unknown_scaling_is_refused(name: str, tmp_path: Path) -> None:
    export(random_model(config("default")), tmp_path / "m.gguf")
    checkpoint = open_model(tmp_path / "m.gguf")
    metadata = dict(checkpoint.metadata) | {"llama.rope.scaling.type": name}
    with pytest.raises(UnsupportedError, match="none, linear, yarn, longrope"):
        build(replace(checkpoint, metadata=metadata))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros(HEAD_DIM // 2, np.float32), "not a positive number"),
        (np.full(HEAD_DIM // 2, np.nan, np.float32), "not a positive number"),
        (np.ones(HEAD_DIM, np.float32), "must be"),
    ],
)
def test_hostile_factors_are_refused(values: np.ndarray, said: str, tmp_path: Path) -> None:
    export(random_model(config("default")), tmp_path / "m.gguf")
    checkpoint = open_model(tmp_path / "m.gguf")
    factors = RawTensor("rope_freqs.weight", "f32", values.shape, memoryview(values.tobytes()))
    tensors = dict(checkpoint.tensors) | {"rope_freqs.weight": factors}
    with pytest.raises(FormatError, match=said):
        build(replace(checkpoint, tensors=tensors))
