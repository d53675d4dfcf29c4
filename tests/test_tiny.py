"""The tiny models are what they say: readable files, the weights that were returned."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from gristmill.files import open_model
from gristmill.files.ggml_types import GGML_TYPES
from gristmill.quant import decode
from tests.tiny import Arch, RopeScaling, tiny_llama

# What a GGUF file may hold as a matrix, and the gguf package writes.
NO_MATRIX = ("q2_0", "q8_1", "q8_k", "i8", "i16", "i32", "i64", "f64")
MATRIX = [kind.name for kind in GGML_TYPES.values() if kind.name not in NO_MATRIX]


@pytest.mark.parametrize("encoding", MATRIX)
def test_file_decodes_to_the_weights(tmp_path: Path, encoding: str) -> None:
    tiny = tiny_llama(tmp_path / "t.gguf", encoding, layers=1)
    model = open_model(tiny.path)
    assert set(model.tensors) == set(tiny.weights)
    assert model.tensors["blk.0.ffn_up.weight"].encoding == encoding
    for name, tensor in model.tensors.items():
        got = decode(tensor)
        np.testing.assert_array_equal(got, tiny.weights[name])
        if got.ndim == 2:
            wanted = (4 if "blk" not in name else 1) / got.shape[1] ** 0.5
            assert wanted / 2 < got.std() < wanted * 2
            assert abs(got.mean()) < 0.55 * got.std()


@pytest.mark.parametrize("arch", get_args(Arch))
def test_equal_arguments_give_equal_files(tmp_path: Path, arch: Arch) -> None:
    first, again, other = (
        tiny_llama(tmp_path / f"{i}.gguf", arch=arch, seed=seed) for i, seed in enumerate([1, 1, 2])
    )
    assert first.path.read_bytes() == again.path.read_bytes() != other.path.read_bytes()


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3", "longrope"])
def test_rope_scaling_is_written(tmp_path: Path, kind: str) -> None:
    scaling: RopeScaling = {"type": kind, "factor": 4.0, "original": 128}  # pyright: ignore
    tiny = tiny_llama(tmp_path / "t.gguf", rope_scaling=scaling)
    model = open_model(tiny.path)
    if kind == "llama3":
        divisors = tiny.weights["rope_freqs.weight"]
        assert divisors[0] == 1
        assert divisors[-1] == 4
        assert "llama.rope.scaling.type" not in model.metadata
    else:
        assert model.metadata["llama.rope.scaling.type"] == kind
        assert model.metadata["llama.rope.scaling.factor"] == 4
    assert ("rope_factors_long.weight" in model.tensors) == (kind == "longrope")


def test_mixed_encodings_and_padding(tmp_path: Path) -> None:
    tiny = tiny_llama(
        tmp_path / "t.gguf", "q4_k", encodings={"attn_v": "q6_k", "token_embd": "q8_0"}, vocab=512
    )
    model = open_model(tiny.path)
    found = {name: tensor.encoding for name, tensor in model.tensors.items()}
    assert found["blk.1.attn_v.weight"] == "q6_k"
    assert found["blk.1.attn_q.weight"] == "q4_k"
    assert found["token_embd.weight"] == "q8_0"
    assert len(tiny.tokens) == len(set(tiny.tokens)) == 512
    assert tiny.weights["token_embd.weight"].shape == (512, 256)


def test_every_merge_joins_known_tokens(tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "t.gguf")
    known = set(tiny.tokens)
    assert len(tiny.merges) > 50
    for merge in tiny.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known
