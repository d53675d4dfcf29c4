"""Configs as they lie on the hub, from before ``rope_parameters``: the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from gristmill import backends
from gristmill.models import build, understand
from gristmill.quant import decode
from gristmill.types import Checkpoint, RawTensor

from .recipes import golden

Config = dict[str, Any]


def folder(name: str, change: Callable[[Config], Config]) -> Checkpoint:
    """The folder of a family's golden model with its config written otherwise."""
    hf = golden(name).hf
    config = change(dict(cast("Config", hf.metadata["hf.config"])))
    # Understood tensors have GGUF's names, which are read as they are.
    rope = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
    tensors = {n: t for n, t in hf.tensors.items() if n not in rope}
    return understand(replace(hf, metadata={"hf.config": config}, tensors=tensors))


def scaled(config: Config, kind: str = "rope_type") -> Config:
    """``rope_theta`` and ``rope_scaling`` for ``rope_parameters``."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if kind == "type" and key in rope:
            config[key] = rope.pop(key)
    rope[kind] = rope.pop("rope_type")
    return config | {"rope_scaling": rope if rope[kind] != "default" else None}


def by_kind(config: Config) -> Config:
    """Gemma 3's keys."""
    rope = config.pop("rope_parameters")
    types = config.pop("layer_types")
    config["rope_theta"] = rope["full_attention"]["rope_theta"]
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    return config | {"sliding_window_pattern": types.index("full_attention") + 1}


def global_heads(config: Config) -> Config:
    """Gemma 4's as first published."""
    each = config.pop("per_layer_config")
    (own,) = {tuple(sorted(values.items())) for values in each.values()}
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    return config | {names[key]: value for key, value in own}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama3", scaled),
        ("phi3", lambda config: scaled(config, "type")),
        ("stablelm-parallel", lambda config: scaled(config, "type")),
        ("glm4", lambda config: scaled(config, "type")),
        ("hunyuan_v1_dense", lambda config: scaled(config, "type")),
        ("ministral3", scaled),
        ("gemma3", by_kind),
        ("gemma4", global_heads),
        ("gemma4-31b", global_heads),
        (
            "exaone4",
            lambda config: {**config, "layer_types": None, "sliding_window_pattern": "LLLG"},
        ),
        ("cohere2", lambda config: {**config, "layer_types": None, "sliding_window_pattern": 4}),
        ("gemma2", lambda config: {**config, "layer_types": None}),
        ("smollm3", lambda config: {**config, "no_rope_layers": None}),
        ("qwen3_vl", lambda config: config | config.pop("text_config")),
    ],
    ids=str,
)
def test_the_same_model(name: str, change: Callable[[Config], Config]) -> None:
    now, before = golden(name).hf, folder(name, change)
    assert build(now).config == build(before).config
    assert [(w.name, w.shape) for w in build(now).wanted()] == [
        (w.name, w.shape) for w in build(before).wanted()
    ]
    for tensor in now.tensors:
        assert decode(before.tensors[tensor]).tobytes() == decode(now.tensors[tensor]).tobytes()


def test_experts_stacked_as_on_the_hub() -> None:
    """Qwen 3.5's experts as two tensors, rows first, instead of three for each."""
    apart = golden("qwen3_5_moe").hf
    tensors = {n: t for n, t in apart.tensors.items() if "_exps." not in n}

    def stacked(name: str, *stems: str) -> None:
        each = [
            np.concatenate([np.array(decode(apart.tensors[f"{s}.{i}.weight"])) for s in stems])
            for i in range(6)
        ]
        data = np.stack(each)
        tensors[name] = RawTensor(name, "f32", data.shape, memoryview(data.tobytes()))

    for i in range(4):
        at, exps = f"model.layers.{i}.mlp.experts.", f"blk.{i}.ffn_%s_exps"
        stacked(f"{at}gate_up_proj", exps % "gate", exps % "up")
        stacked(f"{at}down_proj", exps % "down")
    metadata = {"hf.config": apart.metadata["hf.config"]}
    whole = understand(replace(apart, metadata=metadata, tensors=tensors))
    ours, theirs = build(whole).wanted(), build(apart).wanted()
    assert [(w.name, w.kind, w.shape) for w in ours] == [(w.name, w.kind, w.shape) for w in theirs]
    back = backends.open("reference")
    for one, other in zip(ours, theirs, strict=True):
        if one.kind == "experts":
            got, want = back.pack(one, whole.tensors), back.pack(other, apart.tensors)
            assert np.array_equal(np.asarray(cast(Any, got).data), np.asarray(cast(Any, want).data))
