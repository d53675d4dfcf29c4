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


def layer_kinds(config: Settings, other: str) -> list[bool] | None:
    """Whether each layer attends (``full_attention``) rather than being ``other``; None where
    the config does not list them."""
    kinds = config.values.get("layer_types")
    if not isinstance(kinds, list):
        return None
    listed = cast("list[object]", kinds)
    unknown = [kind for kind in listed if kind not in (other, "full_attention")]
    if unknown:
        raise UnsupportedError(f"config.json: the layer type {unknown[0]!r:.60} is not served.")
    return [kind != other for kind in listed]


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


def decay_rates(tensors: dict[str, RawTensor]) -> None:
    """Folders have the logarithms of the rates at which states decay; GGUF has −e^x of them."""
    for name, tensor in tensors.items():
        if name.startswith("blk.") and name.endswith(".ssm_a"):
            values = decode(tensor).reshape(-1).tolist()
            data = array("f", [-math.exp(min(value, 80.0)) for value in values])
            tensors[name] = RawTensor(name, "f32", (len(data),), memoryview(data).cast("B"))
