"""The shapes of models with recurrent layers, as config.json says them, in GGUF's words."""

from __future__ import annotations

import math
from array import array
from typing import cast

from gristmill.errors import UnsupportedError
from gristmill.models.huggingface.scalings import Own
from gristmill.models.huggingface.settings import Settings
from gristmill.quant import decode
from gristmill.types import RawTensor

_ATTENDING = ("full_attention", "attention")


def layer_kinds(config: Settings, *others: str) -> list[bool] | None:
    """Whether each layer attends rather than being one of ``others``; None where the config does
    not list them."""
    kinds = config.values.get("layer_types")
    if not isinstance(kinds, list):
        return None
    listed = cast("list[object]", kinds)
    unknown = [kind for kind in listed if kind not in (*others, *_ATTENDING)]
    if unknown:
        raise UnsupportedError(f"config.json: the layer type {unknown[0]!r:.60} is not served.")
    return [kind in _ATTENDING for kind in listed]


def lfm2(config: Settings) -> Own:
    """LFM2: which layers attend, the convolution's length, the feed-forward's adjusted width."""
    layers = config.integer("num_hidden_layers")
    attends = layer_kinds(config, "conv")
    if attends is None:
        indices = config.values.get("full_attn_idxs")
        some = cast("list[object]", indices) if isinstance(indices, list) else range(layers)
        attends = [i in some for i in range(layers)]
    hidden = config.integer("block_ff_dim", config.integer("intermediate_size"))
    if config.flag("block_auto_adjust_ff_dim", True):
        multiple = max(config.integer("block_multiple_of", 256), 1)
        hidden = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * hidden / 3))
        hidden = -(-hidden // multiple) * multiple
    heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    return {
        "attention.head_count_kv": [heads if attend else 0 for attend in attends],
        "attention.layer_norm_rms_epsilon": config.number("norm_eps", 1e-5),
        "feed_forward_length": hidden,
        "shortconv.l_cache": config.integer("conv_L_cache", 3),
    }


def qwen35(config: Settings) -> Own:
    """Qwen 3.5: the sizes of its delta nets, and which layers attend."""
    layers = config.integer("num_hidden_layers")
    attends = layer_kinds(config, "linear_attention")
    if attends is None:
        period = max(config.integer("full_attention_interval", 4), 1)
        attends = [i % period == period - 1 for i in range(layers)]
    heads = config.integer("linear_num_value_heads", 32)
    return {
        "attention.recurrent_layers": [not attend for attend in attends],
        "norm_plus": 1.0,
        "ssm.conv_kernel": config.integer("linear_conv_kernel_dim", 4),
        "ssm.group_count": config.integer("linear_num_key_heads", 16),
        "ssm.inner_size": heads * config.integer("linear_value_head_dim", 128),
        "ssm.state_size": config.integer("linear_key_head_dim", 128),
        "ssm.time_step_rank": heads,
    }


def granitehybrid(config: Settings) -> Own:
    """Granite 4 H: the sizes of its Mamba 2 layers, and which layers attend."""
    layers = config.integer("num_hidden_layers")
    attends = layer_kinds(config, "mamba", "linear_attention") or [False] * layers
    limit = config.values.get("time_step_limit")
    if isinstance(limit, list):
        low, high = (*cast("list[object]", limit), None, None)[:2]
        if low != 0 or (isinstance(high, int | float) and math.isfinite(high)):
            raise UnsupportedError(
                "config.json: limits of the time step ('time_step_limit') are not served."
            )
    heads = config.integer("num_key_value_heads", config.integer("num_attention_heads"))
    own: Own = {
        "attention.head_count_kv": [heads if attend else 0 for attend in attends],
        "rope.scaling.finetuned": config.text("position_embedding_type", "") == "rope",
        "ssm.conv_kernel": config.integer("mamba_d_conv", 4),
        "ssm.group_count": config.integer("mamba_n_groups", 1),
        "ssm.inner_size": config.integer("mamba_expand", 2) * config.integer("hidden_size"),
        "ssm.state_size": config.integer("mamba_d_state", 256),
        "ssm.time_step_rank": config.integer("mamba_n_heads", 128),
    }
    if not config.integer("num_local_experts", 8):
        own["feed_forward_length"] = config.integer("shared_intermediate_size", 1024)
    return own


def decay_rates(tensors: dict[str, RawTensor]) -> None:
    """Folders have the logarithms of the rates at which states decay; GGUF has −e^x of them."""
    for name, tensor in tensors.items():
        if name.startswith("blk.") and name.endswith(".ssm_a"):
            values = decode(tensor).reshape(-1).tolist()
            data = array("f", [-math.exp(min(value, 80.0)) for value in values])
            tensors[name] = RawTensor(name, "f32", (len(data),), memoryview(data).cast("B"))
