"""granitehybrid (Granite 4 H): Mamba 2 in most layers, attention in some, dense or of experts.

A Mamba 2 layer projects to a gate, to what its convolution sees (values, keys and queries: x, B
and C in the paper), and to a step for each head; its heads keep matrices that decay. Attention
is mostly not rotated. Learnt from ``transformers`` 5.24 and llama.cpp's ``granitehybrid``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.backends.ops import Ops, Part, Wanted, X
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models import layers, recurrent
from gristmill.models.config import Config, read_config
from gristmill.models.families import FAMILIES
from gristmill.models.metadata import Metadata
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, Slot, StateSpec

_MANY = 1 << 20


@dataclass(frozen=True)
class Mamba:
    """The sizes of a Mamba 2 layer."""

    heads: int
    inner: int
    """Columns of all heads' values."""
    key_dim: int
    taps: int

    @property
    def convolved(self) -> int:
        """Columns that the convolution sees: values, keys, queries."""
        return self.inner + 2 * self.key_dim

    @property
    def past(self) -> int:
        """Values of the convolution's state, which lies before the matrices."""
        return (self.taps - 1) * self.convolved

    @property
    def state(self) -> Slot:
        """What a layer remembers."""
        return Slot(self.past + self.inner * self.key_dim)


def read_mamba(meta: Metadata) -> Mamba:
    """The sizes as the metadata has them. Raises FormatError, UnsupportedError."""
    heads = meta.integer("ssm.time_step_rank", 1, _MANY)
    inner = meta.integer("ssm.inner_size", 1, _MANY)
    if inner % heads:
        raise FormatError(
            f"{inner} value features cannot be shared evenly by {heads} heads "
            f"({meta.name('ssm.time_step_rank')!r})."
        )
    groups = meta.integer("ssm.group_count", 1, _MANY)
    if groups > 1:
        raise UnsupportedError(
            f"{meta.name('ssm.group_count')!r} is {groups}: Mamba 2 layers are served whose heads "
            "share one group of keys."
        )
    taps = meta.integer("ssm.conv_kernel", 2, recurrent.MOST_TAPS)
    return Mamba(heads, inner, meta.integer("ssm.state_size", 1, 1 << 12), taps)


class GraniteHybrid:
    """A decoder whose layers without key heads are Mamba 2."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        even, self.attends = recurrent.evened(checkpoint, meta)
        config = read_config(even, FAMILIES["granitehybrid"], context)
        if not meta.flag("rope.scaling.finetuned", True):  # where its converter says so
            config = replace(config, unrotated=(True,) * config.layers)
        self.config: Config = config
        self.mamba = read_mamba(meta)
        wants = Wants(checkpoint.tensors)
        # What one layer has, all must have.
        self.biased = any(wants.has(f"blk.{i}.ssm_conv1d.bias") for i in range(config.layers))
        layers.want_ends(wants, config)
        for layer in range(config.layers):
            if self.attends[layer]:
                layers.want_attention(wants, config, layer)
            else:
                self._want_mamba(wants, layer)
            self._want_feed_forward(wants, layer)
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        full = layers.layer_states(self.config)
        return [full[i] if attends else self.mamba.state for i, attends in enumerate(self.attends)]

    def forward(self, ops: Ops, weights: layers.Weights, *, logits: bool = True) -> X:
        """Logits of the rows that want them."""
        config = self.config
        x = layers.embed(ops, weights, config)
        for layer, attends in enumerate(self.attends):
            if attends:
                y = layers.attention(ops, weights, config, layer, x)
            else:
                y = self._remember(ops, weights, layer, x)
            x = layers.residual(ops, config, x, y)
            y = layers.feed_forward(ops, weights, config, layer, x)
            x = layers.residual(ops, config, x, y)
        return layers.head(ops, weights, config, x, logits)

    def _want_feed_forward(self, wants: Wants, layer: int) -> None:
        """Folders call it shared even where there are no experts beside it."""
        at, config = f"blk.{layer}.", self.config
        shared, down = f"{at}ffn_gate_up_shexp.weight", f"{at}ffn_down_shexp.weight"
        if config.mixture or not (wants.has(shared) or wants.has(down)):
            layers.want_feed_forward(wants, config, layer)
            return
        layers.want_norm(wants, config, f"{at}ffn_norm")
        wants.matrix(f"{at}ffn_gate_up.weight", config.width, (shared, 2 * config.hidden))
        wants.matrix(f"{at}ffn_down.weight", config.hidden, (down, config.width))

    def _want_mamba(self, wants: Wants, layer: int) -> None:
        """The steps' rows of the projection are a matrix of their own, for they have a bias."""
        at, mamba, width = f"blk.{layer}.", self.mamba, self.config.width
        layers.want_norm(wants, self.config, f"{at}attn_norm")
        name, rows = f"{at}ssm_in.weight", mamba.inner + mamba.convolved
        wants.claim(name, (rows + mamba.heads, width))
        wants.add(name, "matrix", [Part(name, (0, rows))], (rows, width))
        steps = [Part(name, (rows, rows + mamba.heads))]
        wants.add(f"{at}ssm_dt.weight", "matrix", steps, (mamba.heads, width))
        wants.vector(f"{at}ssm_dt.bias", (f"{at}ssm_dt.bias", mamba.heads))
        if self.biased:
            wants.claim(f"{at}ssm_conv1d.bias", (mamba.convolved,))
        recurrent.want_conv(wants, f"{at}ssm_conv1d", mamba.convolved, mamba.taps)
        for each in ("ssm_a", "ssm_d"):
            self._want_flat(wants, f"{at}{each}", (mamba.heads, 1))
        self._want_flat(wants, f"{at}ssm_norm.weight", (1, mamba.inner))
        wants.matrix(f"{at}ssm_out.weight", mamba.inner, (f"{at}ssm_out.weight", width))

    def _want_flat(self, wants: Wants, name: str, shape: tuple[int, int]) -> None:
        """A vector, which GGUF files have with a second axis of one."""
        wants.flat(name, name, *(shape if wants.axes(name) == 2 else (max(shape),)))

    def _remember(self, ops: Ops, w: layers.Weights, layer: int, x: X) -> X:
        at, mamba, config = f"blk.{layer}.", self.mamba, self.config
        x = layers.norm(ops, w, config, f"{at}attn_norm", x)
        gate, mixed = ops.split(
            ops.linear(x, w[f"{at}ssm_in.weight"]), mamba.inner, mamba.convolved
        )
        mixed = recurrent.conv(ops, w, f"{at}ssm_conv1d", layer, mixed, mamba.taps)
        mixed = ops.activation(mixed, "silu")
        v, k, q = ops.split(mixed, mamba.inner, mamba.key_dim, mamba.key_dim)
        step = ops.linear(x, w[f"{at}ssm_dt.weight"], w[f"{at}ssm_dt.bias"])
        step = ops.activation(step, "softplus")
        y = ops.recur(
            q,
            k,
            v,
            step,
            step,
            layer,
            rate=w[f"{at}ssm_a"],
            key_heads=1,
            delta=False,
            skip=w[f"{at}ssm_d"],
            at=mamba.past,
        )
        y = ops.mul(y, ops.activation(gate, "silu"))
        y = ops.rms_norm(y, w[f"{at}ssm_norm.weight"], config.eps)
        return ops.linear(y, w[f"{at}ssm_out.weight"])
