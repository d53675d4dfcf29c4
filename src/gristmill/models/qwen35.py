"""qwen3next, qwen35, qwen35moe: gated delta nets, every fourth layer gated attention.

A delta net's layer keeps for each head a matrix of keys and values that decays and is corrected
by what each token reads of it. Attention's query projection also gives the sigmoid gate of what
is seen, head by head. For text the three positions of its rotation are one. The heads that
predict further tokens ("mtp", "nextn") are left alone. Learnt from ``transformers`` 5.24 and
llama.cpp's ``qwen35``, ``qwen3next``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.backends.ops import Ops, Part, Wanted, X
from gristmill.errors import FormatError
from gristmill.models import layers, recurrent
from gristmill.models.config import Config, read_config
from gristmill.models.families import FAMILIES
from gristmill.models.metadata import Metadata
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, Slot, StateSpec

_MANY = 1 << 20
_EPS = 1e-6
"""Of the norm of keys and queries: the model's code has it fixed."""


@dataclass(frozen=True)
class DeltaNet:
    """The sizes of a delta net's layer."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool
    """Whether head h reads key head h % key_heads: converters of GGUF files deal heads so."""

    @property
    def keys(self) -> int:
        """Columns of all keys."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Columns of all values."""
        return self.heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Columns that the convolution sees: queries, keys, values."""
        return 2 * self.keys + self.values

    @property
    def past(self) -> int:
        """Values of the convolution's state, which lies before the matrices."""
        return (self.taps - 1) * self.convolved

    @property
    def state(self) -> Slot:
        """What a layer remembers."""
        return Slot(self.past + self.values * self.key_dim)


def read_net(checkpoint: Checkpoint, meta: Metadata) -> DeltaNet:
    """The sizes as the metadata has them. Raises FormatError if they cannot be."""
    heads = meta.integer("ssm.time_step_rank", 1, _MANY)
    key_heads = meta.integer("ssm.group_count", 1, _MANY)
    inner = meta.integer("ssm.inner_size", 1, _MANY)
    if heads % key_heads or inner % heads:
        raise FormatError(
            f"{key_heads} key heads and {inner} value features cannot be shared evenly by {heads} "
            f"heads ({meta.name('ssm.time_step_rank')!r})."
        )
    taps = meta.integer("ssm.conv_kernel", 2, recurrent.MOST_TAPS)
    key_dim = meta.integer("ssm.state_size", 1, 1 << 12)
    dealt = checkpoint.format != "hf" and meta.architecture != "qwen3next"
    tiled = dealt and heads != key_heads
    return DeltaNet(heads, key_heads, key_dim, inner // heads, taps, tiled)


class Qwen35:
    """A decoder of delta nets and gated attention."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        whole = read_config(checkpoint, FAMILIES[meta.architecture], context)
        further = meta.integer("nextn_predict_layers", 0, whole.layers - 1, 0)
        self.config: Config = replace(whole, layers=whole.layers - further)
        self.net = read_net(checkpoint, meta)
        self.attends = recurrent.attending(meta, self.config.layers)
        wants = Wants(checkpoint.tensors)
        layers.want_ends(wants, self.config)
        for layer in range(self.config.layers):
            layers.want_norm(wants, self.config, f"blk.{layer}.attn_norm")
            if self.attends[layer]:
                self._want_attention(wants, layer)
            else:
                self._want_net(wants, layer)
            layers.want_feed_forward(wants, self.config, layer)
            gate = f"blk.{layer}.ffn_gate_inp_shexp.weight"
            if self.config.mixture and not wants.has(gate):  # elsewhere it may be missing
                wants.claim(gate, (1, self.config.width))
        ahead = tuple(f"blk.{i}." for i in range(self.config.layers, whole.layers))
        wants.ignore(*(name for name in checkpoint.tensors if name.startswith(ahead or ("-",))))
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence."""
        full = layers.layer_states(self.config)
        return [full[i] if attends else self.net.state for i, attends in enumerate(self.attends)]

    def forward(self, ops: Ops, weights: layers.Weights, *, logits: bool = True) -> X:
        """Logits of the rows that want them."""
        x = layers.embed(ops, weights, self.config)
        for layer, attends in enumerate(self.attends):
            y = layers.norm(ops, weights, self.config, f"blk.{layer}.attn_norm", x)
            made = self._attend if attends else self._remember
            x = ops.add(x, made(ops, weights, layer, y))
            x = ops.add(x, layers.feed_forward(ops, weights, self.config, layer, x))
        return layers.head(ops, weights, self.config, x, logits)

    def _want_attention(self, wants: Wants, layer: int) -> None:
        """q and its gate lie head by head, one after the other: all q come first here, then k
        and v, then the gates."""
        at, config, size = f"blk.{layer}.", self.config, self.config.head_dim
        heads, shared = config.heads * size, config.kv_heads * size
        q, k, v = (f"{at}attn_{name}.weight" for name in "qkv")
        for name, rows in ((q, 2 * heads), (k, shared), (v, shared)):
            wants.claim(name, (rows, config.width))
        cuts = [Part(q, (start, start + size)) for start in range(0, 2 * heads, size)]
        parts = [*cuts[::2], Part(k), Part(v), *cuts[1::2]]
        shape = (2 * (heads + shared), config.width)
        wants.add(f"{at}attn_qkv.weight", "matrix", parts, shape)
        for name in ("q", "k"):
            full = f"{at}attn_{name}_norm.weight"
            wants.vector(full, (full, size), plus=config.norm_plus)
        wants.matrix(f"{at}attn_output.weight", heads, (f"{at}attn_output.weight", config.width))

    def _attend(self, ops: Ops, w: layers.Weights, layer: int, x: X) -> X:
        at, config, size = f"blk.{layer}.", self.config, self.config.head_dim
        heads, shared = config.heads * size, config.kv_heads * size
        y = ops.linear(x, w[f"{at}attn_qkv.weight"])
        q, k, v, gate = ops.split(y, heads, shared, shared, heads)
        q = ops.rms_norm(q, w[f"{at}attn_q_norm.weight"], config.eps, config.heads)
        k = ops.rms_norm(k, w[f"{at}attn_k_norm.weight"], config.eps, config.kv_heads)
        q, k = ops.rope(q, config.rope, size), ops.rope(k, config.rope, size)
        seen = ops.attention(q, k, v, layer, scale=config.attention_scale)
        seen = ops.mul(seen, ops.activation(gate, "sigmoid"))
        return ops.linear(seen, w[f"{at}attn_output.weight"])

    def _want_net(self, wants: Wants, layer: int) -> None:
        at, net, width = f"blk.{layer}.", self.net, self.config.width
        if self.config.architecture == "qwen3next":
            self._want_shuffled(wants, at)
        else:
            self._want_projections(wants, at)
        wants.vector(f"{at}ssm_dt.bias", (f"{at}ssm_dt.bias", net.heads))
        wants.vector(f"{at}ssm_a", (f"{at}ssm_a", net.heads))
        wants.vector(f"{at}ssm_norm.weight", (f"{at}ssm_norm.weight", net.value_dim))
        wants.matrix(f"{at}ssm_out.weight", net.values, (f"{at}ssm_out.weight", width))
        recurrent.want_conv(wants, f"{at}ssm_conv1d", net.convolved, net.taps)

    def _want_projections(self, wants: Wants, at: str) -> None:
        net, width = self.net, self.config.width
        parts = (("attn_qkv", net.convolved), ("attn_gate", net.values), ("ssm_beta", net.heads))
        named = [(f"{at}{name}.weight", rows) for name, rows in parts]
        wants.matrix(f"{at}ssm_in.weight", width, *named)
        wants.matrix(f"{at}ssm_alpha.weight", width, (f"{at}ssm_alpha.weight", net.heads))

    def _want_shuffled(self, wants: Wants, at: str) -> None:
        """Qwen3-Next's: what belongs to a key head lies together: q, k, v, gate, and in another
        tensor beta, alpha. Newer GGUF files have the first in order."""
        net, width, whole = self.net, self.config.width, f"{at}ssm_in.weight"
        shared, groups = net.heads // net.key_heads, range(net.key_heads)
        values = shared * net.value_dim
        parts = [Part(f"{at}attn_qkv.weight"), Part(f"{at}attn_gate.weight")]
        if not any(wants.has(part.tensor) for part in parts):
            sizes = (net.key_dim, net.key_dim, values, values)
            wants.claim(whole, (net.key_heads * sum(sizes), width))
            starts = [sum(sizes[:i]) for i in range(4)]
            parts = [
                Part(whole, (g * sum(sizes) + start, g * sum(sizes) + start + size))
                for start, size in zip(starts, sizes, strict=True)
                for g in groups
            ]
        else:
            for part, rows in zip(parts, (net.convolved, net.values), strict=True):
                wants.claim(part.tensor, (rows, width))
        ba, both = f"{at}ssm_ba.weight", 2 * shared
        wants.claim(ba, (2 * net.heads, width))
        beta = [Part(ba, (g * both, g * both + shared)) for g in groups]
        alpha = [Part(ba, (g * both + shared, (g + 1) * both)) for g in groups]
        rows = net.convolved + net.values + net.heads
        wants.add(whole, "matrix", [*parts, *beta], (rows, width))
        wants.add(f"{at}ssm_alpha.weight", "matrix", alpha, (net.heads, width))

    def _remember(self, ops: Ops, w: layers.Weights, layer: int, x: X) -> X:
        at, net = f"blk.{layer}.", self.net
        y = ops.linear(x, w[f"{at}ssm_in.weight"])
        mixed, gate, beta = ops.split(y, net.convolved, net.values, net.heads)
        mixed = recurrent.conv(ops, w, f"{at}ssm_conv1d", layer, mixed, net.taps)
        q, k, v = ops.split(ops.activation(mixed, "silu"), net.keys, net.keys, net.values)
        # Of unit length, queries then by the root of their width: a norm by mean squares gives
        # the root of the width too much.
        unit = net.key_dim**-0.5
        q = ops.scale(ops.rms_norm(q, None, _EPS / net.key_dim, net.key_heads), unit * unit)
        k = ops.scale(ops.rms_norm(k, None, _EPS / net.key_dim, net.key_heads), unit)
        step = ops.linear(x, w[f"{at}ssm_alpha.weight"], w[f"{at}ssm_dt.bias"])
        y = ops.recur(
            q,
            k,
            v,
            ops.activation(step, "softplus"),
            ops.activation(beta, "sigmoid"),
            layer,
            rate=w[f"{at}ssm_a"],
            key_heads=net.key_heads,
            delta=True,
            tiled=net.tiled,
            at=net.past,
        )
        y = ops.rms_norm(y, w[f"{at}ssm_norm.weight"], self.config.eps, net.heads)
        y = ops.mul(y, ops.activation(gate, "silu"))
        return ops.linear(y, w[f"{at}ssm_out.weight"])
