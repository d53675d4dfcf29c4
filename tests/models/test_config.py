"""Metadata and tensors that cannot be: one clear error each, never a wrong model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models import ARCHITECTURES, build
from gristmill.types import Checkpoint, RawTensor, Window

from .golden import tiny


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A sound llama with biases."""
    return tiny("tiny-llama", tmp_path_factory.mktemp("model")).checkpoint


def changed(good: Checkpoint, **values: Any) -> Checkpoint:
    """With other metadata; dots are written as double underscores, None removes."""
    metadata = dict(good.metadata)
    for key, value in values.items():
        name = "llama." + key.replace("__", ".")
        metadata.pop(name, None) if value is None else metadata.update({name: value})
    return replace(good, metadata=metadata)


def test_the_good_one_is_good(good: Checkpoint) -> None:
    config = build(good).config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (2, 4, 2, 6)
    assert (config.width, config.hidden, config.vocab) == (24, 36, 40)


@pytest.mark.parametrize(
    "values",
    [
        {"attention__head_count": 0},
        {"attention__head_count": -4},
        {"attention__head_count": 4.0},
        {"attention__head_count": True},
        {"attention__head_count": "4"},
        {"attention__head_count": None},
        {"attention__head_count": 3},
        {"attention__head_count": 1 << 40},
        {"attention__head_count_kv": 0},
        {"attention__head_count_kv": 3},
        {"attention__head_count_kv": 8},
        {"attention__head_count": 5, "attention__key_length": None},
        {"attention__key_length": 0},
        {"attention__key_length": 8, "attention__value_length": 8},
        {"embedding_length": 0},
        {"embedding_length": 25},
        {"embedding_length": None},
        {"feed_forward_length": 0},
        {"feed_forward_length": 37},
        {"block_count": 0},
        {"block_count": 1},
        {"block_count": 3},
        {"block_count": 1 << 31},
        {"block_count": None},
        {"context_length": 0},
        {"context_length": 1 << 40},
        {"context_length": None},
        {"attention__layer_norm_rms_epsilon": None},
        {"attention__layer_norm_rms_epsilon": float("nan")},
        {"attention__layer_norm_rms_epsilon": -1.0},
        {"rope__dimension_count": 0},
        {"rope__dimension_count": 5},
        {"rope__dimension_count": 8},
        {"rope__freq_base": 0.0},
        {"rope__freq_base": float("inf")},
        {"rope__scaling__type": 3},
        {"rope__scaling__factor": -2.0},
        {"rope__scaling__type": "longrope"},
        {"attention__sliding_window": -1},
    ],
    ids=str,
)
def test_metadata_that_cannot_be(good: Checkpoint, values: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as caught:
        build(changed(good, **values))
    assert str(caught.value).count("\n") == 0
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "values",
    [
        {"attention__value_length": 12},
        {"attention__head_count_kv": [2, 1]},
        {"feed_forward_length": np.array([36, 40])},
    ],
    ids=str,
)
def test_sound_but_not_served(good: Checkpoint, values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        build(changed(good, **values))


def test_one_number_per_layer_is_fine_if_all_are_equal(good: Checkpoint) -> None:
    values = {"attention__head_count_kv": [2, 2], "feed_forward_length": np.array([36, 36])}
    assert build(changed(good, **values)).config == build(good).config


def test_a_window_of_llama_is_that_of_every_layer(good: Checkpoint) -> None:
    states = build(changed(good, attention__sliding_window=16)).states()
    assert states == [Window(2, 6, 16)] * 2


@pytest.mark.parametrize(
    ("pattern", "local"),
    [
        (None, [True] * 5 + [False]),
        (2, [True, False] * 3),
        (0, [True] * 6),
        (np.array([0, 1, 1, 0, 0, 1, 1, 1]), [False, True, True, False, False, True]),
    ],
)
def test_which_layers_of_gemma3_slide(pattern: object, local: list[bool], tmp_path: Path) -> None:
    gemma = tiny("tiny-gemma3", tmp_path).checkpoint
    key = "gemma3.attention.sliding_window_pattern"
    metadata = dict(gemma.metadata) | ({} if pattern is None else {key: pattern})
    states = build(replace(gemma, metadata=metadata)).states()
    assert [isinstance(state, Window) for state in states] == local
    with pytest.raises(FormatError, match="3 entries for 6 layers"):
        build(replace(gemma, metadata=dict(gemma.metadata) | {key: [True] * 3}))


def test_unknown_architecture_lists_the_known(good: Checkpoint) -> None:
    metadata = dict(good.metadata) | {"general.architecture": "mamba"}
    with pytest.raises(UnsupportedError) as caught:
        build(replace(good, metadata=metadata))
    assert all(name in str(caught.value) for name in ["'mamba'", *ARCHITECTURES])


@pytest.mark.parametrize("name", [None, 7, ["llama"]])
def test_no_architecture(good: Checkpoint, name: object) -> None:
    metadata = dict(good.metadata) | {"general.architecture": name}
    with pytest.raises(FormatError, match="no text"):
        build(replace(good, metadata=metadata))


def _without(name: str) -> Callable[[dict[str, RawTensor]], None]:
    return lambda tensors: tensors.pop(name) and None


def _reshaped(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, RawTensor]], None]:
    return lambda tensors: tensors.update({name: replace(tensors[name], shape=shape)})


def _added(name: str) -> Callable[[dict[str, RawTensor]], None]:
    data = memoryview(np.ones(4, np.float32).tobytes())
    return lambda tensors: tensors.update({name: RawTensor(name, "f32", (4,), data)})


@pytest.mark.parametrize(
    ("change", "named", "kind"),
    [
        (_without("token_embd.weight"), "token_embd.weight", FormatError),
        (_without("output_norm.weight"), "output_norm.weight", FormatError),
        (_without("blk.1.attn_v.weight"), "blk.1.attn_v.weight", FormatError),
        (_without("blk.0.attn_v.bias"), "blk.0.attn_v.bias", FormatError),
        (_without("blk.0.ffn_up.weight"), "blk.0.ffn_up.weight", FormatError),
        (_reshaped("token_embd.weight", (24, 40)), "token_embd.weight", FormatError),
        (_reshaped("token_embd.weight", (960,)), "token_embd.weight", FormatError),
        (_reshaped("blk.0.attn_k.weight", (24, 12)), "blk.0.attn_k.weight", FormatError),
        (_reshaped("blk.1.attn_norm.weight", (12,)), "blk.1.attn_norm.weight", FormatError),
        (_added("blk.0.ffn_gate_inp.weight"), "blk.0.ffn_gate_inp.weight", UnsupportedError),
        (_added("blk.0.attn_q_norm.weight"), "blk.0.attn_q_norm.weight", UnsupportedError),
        (_added("blk.9.attn_q.weight"), "block_count", FormatError),
        (_added("cls.weight"), "cls.weight", UnsupportedError),
    ],
)
def test_tensors_that_disagree(
    good: Checkpoint,
    change: Callable[[dict[str, RawTensor]], None],
    named: str,
    kind: type[Exception],
) -> None:
    tensors = dict(good.tensors)
    change(tensors)
    with pytest.raises(kind, match=named):
        build(replace(good, tensors=tensors))


def test_more_tokens_than_embeddings(good: Checkpoint) -> None:
    metadata = dict(good.metadata) | {"tokenizer.ggml.tokens": [str(i) for i in range(41)]}
    with pytest.raises(FormatError, match="41 tokens"):
        build(replace(good, metadata=metadata))
