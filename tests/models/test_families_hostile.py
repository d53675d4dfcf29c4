"""Files of the dense families that cannot be, or are something else: one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from gristmill.errors import FormatError, GristmillError, UnsupportedError
from gristmill.models import build, understand
from gristmill.types import Checkpoint, RawTensor

from .recipes import NAMES, golden


def gguf(name: str) -> Checkpoint:
    made = golden(name).gguf
    assert made is not None
    return made


def changed(checkpoint: Checkpoint, **values: Any) -> Checkpoint:
    """With other metadata; two underscores are a dot, None removes the key."""
    metadata = dict(checkpoint.metadata)
    for key, value in values.items():
        name = f"{metadata['general.architecture']}.{key.replace('__', '.')}"
        metadata.pop(name, None) if value is None else metadata.update({name: value})
    return replace(checkpoint, metadata=metadata)


def refused(checkpoint: Checkpoint, kind: type[GristmillError], *says: str) -> None:
    with pytest.raises(kind) as caught:
        build(understand(checkpoint))
    sentence = str(caught.value)
    assert sentence.count("\n") == 0 and len(sentence) < 700
    for word in says:
        assert word in sentence


FREE = ("output.weight", "output.bias", "output_norm.bias", "rope_freqs.weight")
"""What may be missing, as far as anybody can tell."""


@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("name", NAMES)
def test_every_missing_tensor_is_named(name: str, kind: str) -> None:
    """Each tensor of a model in turn is missed; but no file says whether its head is tied, and a
    GGUF file not whether RoPE has factors."""
    made = golden(name)
    checkpoint = made.hf if kind == "hf" else made.gguf
    if checkpoint is None:
        pytest.skip("llama.cpp's converter does not know this architecture")
    for tensor in checkpoint.tensors:
        rest = {n: t for n, t in checkpoint.tensors.items() if n != tensor}
        try:
            build(replace(checkpoint, tensors=rest))
        except FormatError as error:
            assert str(error).count("\n") == 0
            # Of a fused tensor the parts are looked for; of several that belong together one.
            module = tensor.replace("attn_qkv", "attn_q").split(".")[:3]
            assert ".".join(module).removesuffix(".weight") in str(error), str(error)
        except UnsupportedError as error:  # what is left of a layer has no use
            assert tensor.startswith("blk.0."), str(error)
        else:
            keys_are_values = name == "gemma4" and tensor == "blk.2.attn_v.weight"
            assert tensor in FREE or keys_are_values, f"{tensor} is not missed"


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    checkpoint = golden(name).hf
    for tensor, raw in checkpoint.tensors.items():
        shape = (raw.shape[0] + 1, *raw.shape[1:])
        data = memoryview(bytes(4 * int(np.prod(shape))))
        wrong = {**checkpoint.tensors, tensor: RawTensor(tensor, "f32", shape, data)}
        if tensor in ("per_layer_token_embd.weight", "token_embd.weight"):
            continue  # more rows than tokens do no harm
        with pytest.raises(FormatError, match=tensor.replace(".", r"\.")):
            build(replace(checkpoint, tensors=wrong))


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("gemma4", {"attention__shared_kv_layers": 7}, "shared_kv_layers"),
        ("gemma4", {"attention__shared_kv_layers": 6}, "no layer of its kind"),
        ("gemma4", {"attention__shared_kv_layers": -1}, "shared_kv_layers"),
        ("gemma4", {"attention__head_count_kv": [2, 2]}, "2 entries for 6 layers"),
        ("gemma4", {"attention__head_count_kv": 3}, "cannot be shared evenly"),
        ("gemma4", {"attention__head_count_kv": [2, 2, 2, 2, 2, 0]}, "head_count_kv"),
        ("gemma4", {"attention__head_count_kv": [2.0] * 6}, "head_count_kv"),
        ("gemma4", {"feed_forward_length": [20] * 6}, "ffn_gate"),
        ("gemma4", {"attention__key_length_swa": 9}, "key_length_swa"),
        ("gemma4", {"attention__key_length_swa": 10}, "attn_q"),
        ("gemma4", {"rope__dimension_count_swa": 10}, "dimension_count_swa"),
        ("gemma4", {"attention__sliding_window_pattern": [True] * 3}, "3 entries for 6 layers"),
        ("gemma4", {"embedding_length_per_layer_input": 7}, "per_layer_token_embd"),
        ("gemma4", {"embedding_length_per_layer_input": 1 << 40}, "per_layer_input"),
        ("exaone4", {"attention__sliding_window_pattern": [1, 1]}, "2 entries for 4 layers"),
        ("exaone4", {"attention__sliding_window": -5}, "sliding_window"),
        ("smollm3", {"attention__rope_pattern": [1, 0]}, "2 entries for 4 layers"),
        ("granite", {"logit_scale": float("nan")}, "logit_scale"),
        ("granite", {"residual_scale": -1.0}, "residual_scale"),
        ("ministral3", {"attention__temperature_scale": float("inf")}, "temperature_scale"),
        ("cohere", {"attention__layer_norm_epsilon": None}, "layer_norm_epsilon"),
        ("phi3", {"rope__dimension_count": 4}, "rope_factors"),
        ("stablelm", {"rope__dimension_count": 34}, "dimension_count"),
        ("olmo2", {"attention__key_length": 16}, "attn_q"),
        ("qwen3_moe", {"expert_count": 0}, "expert_count' is 0"),
        ("qwen3_moe", {"expert_count": None}, "expert_count"),
        ("qwen3_moe", {"expert_count": 1 << 40}, "expert_count"),
        ("qwen3_moe", {"expert_count": 7}, "ffn_gate_inp"),
        ("qwen3_moe", {"expert_used_count": 7}, "from 1 to 6"),
        ("qwen3_moe", {"expert_used_count": 0}, "from 1 to 6"),
        ("qwen3_moe", {"expert_feed_forward_length": 13}, "ffn_gate_exps"),
        ("qwen3_moe", {"expert_weights_norm": 2}, "true or false"),
        ("qwen3_moe", {"expert_group_count": 4}, "4 groups"),
        ("qwen3_moe", {"expert_group_count": 6, "expert_group_used_count": 2}, "2 of 6 groups"),
        ("qwen2_moe", {"expert_shared_feed_forward_length": 9}, "shexp"),
        ("mixtral", {"expert_count": 0}, "ffn_gate"),
        ("mixtral", {"expert_used_count": None}, "expert_used_count"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be(name: str, values: dict[str, Any], says: str) -> None:
    refused(changed(gguf(name), **values), FormatError, says)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("granite", {"rope__scaling__type": "spiral"}, "spiral"),
        ("qwen3", {"attention__sliding_window": 16}, "which layers slide"),
        ("olmo2", {"expert_count": 8}, "mixture of experts"),
        ("glm4", {"attention__value_length": 4}, "value features"),
        ("qwen3_moe", {"expert_gating_func": 3}, "1 (softmax) and 2 (sigmoid)"),
    ],
    ids=str,
)
def test_sound_but_not_served(name: str, values: dict[str, Any], says: str) -> None:
    refused(changed(gguf(name), **values), UnsupportedError, says)


def test_the_eyes_alone() -> None:
    eyes = replace(gguf("qwen2"), metadata={"general.architecture": "clip"})
    refused(eyes, UnsupportedError, "sees or hears")


def folder(name: str, change: Callable[[dict[str, Any]], object]) -> Checkpoint:
    """A folder's checkpoint with another config.json, not yet understood."""
    hf = golden(name).hf
    config = dict(cast("dict[str, Any]", hf.metadata["hf.config"]))
    change(config)
    return replace(hf, metadata={"hf.config": config}, tensors={})


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("gemma4", {"enable_moe_block": True}, "experts"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "bidirectional"),
        ("gemma4", {"layer_types": ["linear_attention"] * 6}, "linear_attention"),
        ("llama3", {"rope_parameters": {"rope_type": "spiral"}}, "spiral"),
        ("starcoder2", {"hidden_act": "relu"}, "relu"),
        ("smollm3", {"no_rope_layers": [2, 1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": 4}, "no_rope_layers"),
        ("granite", {"logits_scaling": "much"}, "logits_scaling"),
        ("cohere", {"model_type": "siglip_vision_model"}, "siglip_vision_model"),
        ("phi3", {"rope_parameters": 3}, "rope_parameters"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 16}, "5": {"head_dim": 8}}}, "differs"),
    ],
    ids=str,
)
def test_configs_that_cannot_be(name: str, values: dict[str, Any], says: str) -> None:
    refused(folder(name, lambda config: config.update(values)), GristmillError, says)
