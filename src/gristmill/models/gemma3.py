"""gemma3 (text): sandwich norms, per-head q and k norms, five sliding layers for each full one.

Source: arXiv 2503.19786. A GGUF file's norm weights already hold Gemma's 1 + w.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gristmill.backends.ops import Ops, Rope, Wanted, X
from gristmill.errors import FormatError
from gristmill.models import layers
from gristmill.models.config import Config, read_config
from gristmill.models.metadata import Metadata
from gristmill.models.rope import plain_frequencies
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, StateSpec

_27B_LAYERS = 62
"""The one size that scales queries by width/heads, not by head_dim; files do not say it."""


class Gemma3:
    """A dense decoder whose layers norm both what they read and what they add."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        config = read_config(checkpoint, "half", context)
        self.config: Config = replace(
            config,
            attention_scale=_attention_scale(meta, config),
            window=meta.integer("attention.sliding_window", 0, (1 << 31) - 1, 0),
            local=_local_layers(meta, config.layers),
            local_rope=_local_rope(meta, config),
            attention_softcap=meta.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
            final_softcap=meta.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        )
        wants = Wants(checkpoint.tensors)
        layers.want_ends(wants, config)
        for layer in range(config.layers):
            layers.want_attention(wants, config, layer, qk_norm=True)
            layers.want_feed_forward(wants, config, layer)
            for name in ("post_attention_norm", "post_ffw_norm"):
                full = f"blk.{layer}.{name}.weight"
                wants.vector(full, (full, config.width), plus=config.norm_plus)
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        return layers.layer_states(self.config)

    def forward(self, ops: Ops, weights: layers.Weights) -> X:
        """Logits of the rows that want them."""
        config = self.config
        x = ops.embed(weights["token_embd.weight"], math.sqrt(config.width))
        for layer in range(config.layers):
            y = layers.attention(ops, weights, config, layer, x)
            norm = weights[f"blk.{layer}.post_attention_norm.weight"]
            x = ops.add(x, ops.rms_norm(y, norm, config.eps))
            y = layers.feed_forward(ops, weights, config, layer, x, "gelu_tanh")
            norm = weights[f"blk.{layer}.post_ffw_norm.weight"]
            x = ops.add(x, ops.rms_norm(y, norm, config.eps))
        return layers.head(ops, weights, config, x)


def _attention_scale(meta: Metadata, config: Config) -> float:
    if not meta.has("attention.scale") and config.layers == _27B_LAYERS:
        return (config.width // config.heads) ** -0.5
    return config.attention_scale


def _local_layers(meta: Metadata, layers_: int) -> tuple[bool, ...]:
    """Which layers slide: none without a window; a flag for each, or all but every n-th."""
    if meta.integer("attention.sliding_window", 0, (1 << 31) - 1, 0) == 0:
        return ()
    key = "attention.sliding_window_pattern"
    flags = meta.array(key)
    if flags is None:
        period = meta.integer(key, 0, 1 << 16, 6)
        return tuple(period == 0 or i % period != period - 1 for i in range(layers_))
    if len(flags) < layers_:
        raise FormatError(f"{meta.name(key)!r} has {len(flags)} entries for {layers_} layers.")
    return tuple(bool(flag) for flag in flags[:layers_])


def _local_rope(meta: Metadata, config: Config) -> Rope:
    """Sliding layers rotate by a base of their own, never scaled."""
    base = meta.number("rope.freq_base_swa", 1.0, 1e15, 10000.0)
    return Rope(tuple(plain_frequencies(base, 2 * len(config.rope.inv_freq))), "half")
