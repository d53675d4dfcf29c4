"""lfm2: short gated convolutions, and attention in some layers.

A convolution layer projects to b, c and x, and gives c · conv(b · x): each column remembers its
last few values of b · x. Learnt from ``transformers`` 5.24 and llama.cpp's ``lfm2``.
"""

from __future__ import annotations

from gristmill.backends.ops import Ops, Wanted, X
from gristmill.models import layers, recurrent
from gristmill.models.config import Config, read_config
from gristmill.models.families import FAMILIES
from gristmill.models.metadata import Metadata
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, Slot, StateSpec


class Lfm2:
    """A decoder whose layers without key heads are convolutions."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        even, self.attends = recurrent.evened(checkpoint, meta)
        self.config: Config = read_config(even, FAMILIES["lfm2"], context)
        self.taps = meta.integer("shortconv.l_cache", 2, recurrent.MOST_TAPS)
        wants = Wants(checkpoint.tensors)
        self._want_ends(wants)
        for layer in range(self.config.layers):
            if self.attends[layer]:
                layers.want_attention(wants, self.config, layer)
            else:
                self._want_convolution(wants, layer)
            layers.want_feed_forward(wants, self.config, layer)
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        kept = Slot((self.taps - 1) * self.config.width)
        full = layers.layer_states(self.config)
        return [full[i] if attends else kept for i, attends in enumerate(self.attends)]

    def forward(self, ops: Ops, weights: layers.Weights, *, logits: bool = True) -> X:
        """Logits of the rows that want them."""
        x = layers.embed(ops, weights, self.config)
        for layer, attends in enumerate(self.attends):
            if attends:
                y = layers.attention(ops, weights, self.config, layer, x)
            else:
                y = self._convolution(ops, weights, layer, x)
            x = ops.add(x, y)
            x = ops.add(x, layers.feed_forward(ops, weights, self.config, layer, x))
        return layers.head(ops, weights, self.config, x, logits)

    def _want_ends(self, wants: Wants) -> None:
        """The last norm is called after the embedding, which it does not touch."""
        width, vocab = self.config.width, self.config.vocab
        wants.matrix("token_embd.weight", width, ("token_embd.weight", vocab))
        wants.vector("output_norm.weight", ("token_embd_norm.weight", width))
        if wants.has("output.weight"):
            wants.matrix("output.weight", width, ("output.weight", vocab))

    def _want_convolution(self, wants: Wants, layer: int) -> None:
        at, width = f"blk.{layer}.", self.config.width
        layers.want_norm(wants, self.config, f"{at}attn_norm")
        for name, rows in (("in_proj", 3 * width), ("out_proj", width)):
            full = f"{at}shortconv.{name}"
            wants.matrix(f"{full}.weight", width, (f"{full}.weight", rows))
            wants.bias(f"{full}.bias", (f"{full}.bias", rows))
        recurrent.want_conv(wants, f"{at}shortconv.conv", width, self.taps)

    def _convolution(self, ops: Ops, w: layers.Weights, layer: int, x: X) -> X:
        at, width = f"blk.{layer}.shortconv.", self.config.width
        y = layers.norm(ops, w, self.config, f"blk.{layer}.attn_norm", x)
        y = ops.linear(y, w[f"{at}in_proj.weight"], w.get(f"{at}in_proj.bias"))
        b, c, y = ops.split(y, width, width, width)
        y = recurrent.conv(ops, w, f"{at}conv", layer, ops.mul(b, y), self.taps)
        return ops.linear(ops.mul(c, y), w[f"{at}out_proj.weight"], w.get(f"{at}out_proj.bias"))
