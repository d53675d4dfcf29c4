"""The shapes of models with recurrent layers, as config.json says them, in GGUF's words."""

from __future__ import annotations

from typing import cast

from gristmill.errors import UnsupportedError
from gristmill.models.huggingface.scalings import Own
from gristmill.models.huggingface.settings import Settings


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
