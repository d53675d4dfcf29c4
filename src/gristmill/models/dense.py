"""Decoders of attention and feed-forward, or experts: one ``forward`` for all ``FAMILIES``."""

from __future__ import annotations

from gristmill.backends.ops import Ops, Wanted, X
from gristmill.models import layers
from gristmill.models.config import Config, read_config
from gristmill.models.families import FAMILIES
from gristmill.models.metadata import Metadata
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, StateSpec


class Dense:
    """Layers of attention and feed-forward, each added to what it read."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        self.config: Config = read_config(checkpoint, FAMILIES[meta.architecture], context)
        wants = Wants(checkpoint.tensors)
        layers.want_ends(wants, self.config)
        for layer in range(self.config.layers):
            layers.want_attention(wants, self.config, layer)
            layers.want_feed_forward(wants, self.config, layer)
        uneven = self.config.mixture is not None and self.config.mixture.first > 0
        self._wanted = wants.finish(meta.architecture, 0 if uneven else self.config.layers)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        return layers.layer_states(self.config)

    def forward(self, ops: Ops, weights: layers.Weights, *, logits: bool = True) -> X:
        """Logits of the rows that want them."""
        x = layers.embed(ops, weights, self.config)
        for layer in range(self.config.layers):
            if layers.is_parallel(weights, self.config, layer):
                y = layers.norm(ops, weights, self.config, f"blk.{layer}.attn_norm", x)
                seen = layers.attend(ops, weights, self.config, layer, y)
                made = layers.transform(ops, weights, self.config, layer, y)
                x = layers.residual(ops, self.config, x, seen)
                x = layers.residual(ops, self.config, x, made)
            else:
                y = layers.attention(ops, weights, self.config, layer, x)
                x = layers.residual(ops, self.config, x, y)
                y = layers.feed_forward(ops, weights, self.config, layer, x)
                x = layers.residual(ops, self.config, x, y)
        return layers.head(ops, weights, self.config, x, logits)
