"""gemma4 (text): heads of two sizes, keys that later layers share, an embedding for each layer.

Beside Gemma 3's norms around both halves: values are normed without a weight, scores are not
scaled, sliding layers have heads of their own size, the last layers attend to what the last
layer of their kind before them stored, and every layer adds a gated projection of the token's
own row of a second table. That table is half of the file, so it is read row by row, where it
lies. Behind the last layer that stores, only rows whose logits are wanted go on: of a prompt
that is one. Learnt from ``transformers`` 5.24 and llama.cpp's ``gemma4``.
"""

from __future__ import annotations

from dataclasses import replace

from gristmill.backends.ops import Ops, Rope, Wanted, X
from gristmill.errors import FormatError
from gristmill.models import layers
from gristmill.models.config import Config, read_config
from gristmill.models.families import FAMILIES
from gristmill.models.metadata import Metadata
from gristmill.models.rope import plain_frequencies
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint, StateSpec

_MANY = 1 << 24
_TABLE, _PROJECTION, _NORM = (
    f"per_layer_{name}.weight" for name in ("token_embd", "model_proj", "proj_norm")
)


class Gemma4:
    """A decoder whose layers differ in more than what they see: each has a config."""

    def __init__(self, checkpoint: Checkpoint, context: int | None = None) -> None:
        meta = Metadata(checkpoint.metadata)
        self.config: Config = read_config(checkpoint, FAMILIES["gemma4"], context, uneven=True)
        self.layers: list[Config] = _by_layer(meta, self.config)
        self.stored: list[int] = _stored(meta, self.config)
        """For each layer, the one whose keys and values it attends to."""
        self._storing: int = sum(stored == i for i, stored in enumerate(self.stored))
        self.extra: int = meta.integer("embedding_length_per_layer_input", 0, 1 << 16, 0)
        wants = Wants(checkpoint.tensors)
        if not wants.has("rope_freqs.weight"):
            raise FormatError("The file has no tensor 'rope_freqs.weight', which the model needs.")
        layers.want_ends(wants, self.config)
        if self.extra:
            self._want_tables(wants)
        self._scaled: bool = wants.has("blk.0.layer_output_scale.weight")
        self._valued: dict[bool, bool] = {
            config.sliding(i): wants.has(f"blk.{i}.attn_v.weight")
            for i, config in reversed(list(enumerate(self.layers)))
        }
        """By kind of layer, whether values have a matrix of their own or are the keys."""
        self.scales: list[float] = [self._want_layer(wants, i) for i in range(self.config.layers)]
        """By what the result of each layer is multiplied."""
        self._wanted = wants.finish(meta.architecture)

    def wanted(self) -> list[Wanted]:
        """The weights to pack, by their place in the file."""
        return self._wanted

    def states(self) -> list[StateSpec]:
        """What each layer remembers of a sequence: only those that store."""
        return [
            layers.layer_states(config)[i]
            for i, config in enumerate(self.layers)
            if self.stored[i] == i
        ]

    def _want_tables(self, wants: Wants) -> None:
        config, columns = self.config, self.config.layers * self.extra
        wants.table(_TABLE, config.vocab, columns)
        wants.matrix(_PROJECTION, config.width, (_PROJECTION, columns))
        wants.vector(_NORM, (_NORM, self.extra))

    def _want_layer(self, wants: Wants, layer: int) -> float:
        config, at = self.layers[layer], f"blk.{layer}."
        own = "kv" if self._valued[config.sliding(layer)] else "k"
        _want_attention(wants, config, layer, own if self.stored[layer] == layer else "")
        layers.want_feed_forward(wants, config, layer)
        if self.extra:
            gate, back = f"{at}inp_gate.weight", f"{at}proj.weight"
            wants.matrix(gate, config.width, (gate, self.extra))
            wants.matrix(back, self.extra, (back, config.width))
            layers.want_norm(wants, config, f"{at}post_norm")
        scale = f"{at}layer_output_scale.weight"
        return wants.number(scale) if self._scaled else 1.0

    def forward(self, ops: Ops, weights: layers.Weights, *, logits: bool = True) -> X:
        """Logits of the rows that want them."""
        x = layers.embed(ops, weights, self.config)
        extras = self._extras(ops, weights, x) if self.extra else ()
        for layer, config in enumerate(self.layers):
            if layer == self._storing:  # no token is looked at any more but by itself
                x, extras = ops.outputs(x), self._outputs(ops, extras)
            x = ops.add(x, _attention(ops, weights, config, layer, self.stored[layer], x))
            x = ops.add(x, layers.feed_forward(ops, weights, config, layer, x))
            if extras:
                x = ops.add(x, _extra(ops, weights, config, layer, x, extras[layer]))
            if self.scales[layer] != 1.0:
                x = ops.scale(x, self.scales[layer])
        end = layers.head if self._storing == len(self.layers) else layers.finish
        return end(ops, weights, self.config, x, logits)

    def _outputs(self, ops: Ops, extras: tuple[X, ...]) -> tuple[X, ...]:
        """Of the rest of the layers' embeddings only the rows that are wanted."""
        if not extras:
            return ()
        rest = [ops.outputs(extra) for extra in extras[self._storing :]]
        return (*extras[: self._storing], *rest)

    def _extras(self, ops: Ops, weights: layers.Weights, x: X) -> tuple[X, ...]:
        """What each layer is given of the token: of its own row, and projected from x."""
        config = self.config
        y = ops.scale(ops.linear(x, weights[_PROJECTION]), config.width**-0.5)
        y = ops.rms_norm(y, weights[_NORM], config.eps, config.layers)
        y = ops.add(y, ops.embed(weights[_TABLE], self.extra**0.5))
        return ops.split(ops.scale(y, 2**-0.5), *[self.extra] * config.layers)


def _want_attention(wants: Wants, config: Config, layer: int, own: str) -> None:
    """Like ``layers.want_attention``, but with those of k and v that are ``own``."""
    at, kept = f"blk.{layer}.", config.kv_heads * config.head_dim
    q = (f"{at}attn_q.weight", config.heads * config.head_dim)
    layers.want_norm(wants, config, f"{at}attn_norm")
    wants.vector(f"{at}attn_q_norm.weight", (f"{at}attn_q_norm.weight", config.head_dim))
    parts = [(f"{at}attn_{name}.weight", kept) for name in own]
    wants.matrix(f"{at}attn_qkv.weight", config.width, q, *parts)
    if own:
        wants.vector(f"{at}attn_k_norm.weight", (f"{at}attn_k_norm.weight", config.head_dim))
    else:  # folders may have keys that the layer was trained without
        wants.ignore(*(f"{at}attn_{n}.weight" for n in ("k", "v", "k_norm")))
    wants.matrix(f"{at}attn_output.weight", q[1], (f"{at}attn_output.weight", config.width))
    layers.want_norm(wants, config, f"{at}post_attention_norm")


def _attention(ops: Ops, w: layers.Weights, config: Config, layer: int, stored: int, x: X) -> X:
    """Norm, attend to what layer number ``stored`` keeps, norm."""
    at = f"blk.{layer}."
    matrix = w[f"{at}attn_qkv.weight"]
    y = ops.linear(layers.norm(ops, w, config, f"{at}attn_norm", x), matrix)
    rope = config.rotation(layer)
    if rope is None:
        raise TypeError("every layer rotates")
    q, *own = ops.split(y, *_widths(config, matrix.shape[0]))
    q = ops.rms_norm(q, w[f"{at}attn_q_norm.weight"], config.eps, config.heads)
    q = ops.rope(q, rope, config.head_dim)
    k = v = None
    if own:
        k = ops.rms_norm(own[0], w[f"{at}attn_k_norm.weight"], config.eps, config.kv_heads)
        k = ops.rope(k, rope, config.head_dim)
        v = ops.rms_norm(own[-1], None, config.eps, config.kv_heads)
    seen = ops.attention(q, k, v, stored, scale=1.0)
    y = ops.linear(seen, w[f"{at}attn_output.weight"])
    return layers.norm(ops, w, config, f"{at}post_attention_norm", y)


def _widths(config: Config, rows: int) -> list[int]:
    """The columns of q, and of k and v where the matrix has them."""
    q, kept = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return [q, *[kept] * ((rows - q) // kept)]


def _extra(ops: Ops, w: layers.Weights, config: Config, layer: int, x: X, given: X) -> X:
    """What a layer makes of its own embedding, gated by x."""
    at = f"blk.{layer}."
    y = ops.activation(ops.linear(x, w[f"{at}inp_gate.weight"]), "gelu_tanh")
    y = ops.linear(ops.mul(y, given), w[f"{at}proj.weight"])
    return layers.norm(ops, w, config, f"{at}post_norm", y)


def _by_layer(meta: Metadata, config: Config) -> list[Config]:
    """The config of each layer: its heads, its rotation, the width of its feed-forward."""
    count = config.layers
    kv_heads = meta.each("attention.head_count_kv", 1, 1 << 16, count)
    hidden = meta.each("feed_forward_length", 1, _MANY, count)
    size = meta.integer("attention.key_length_swa", 2, 1 << 16, config.head_dim)
    rotated = meta.integer("rope.dimension_count_swa", 2, size, size)
    if size % 2 or rotated % 2:
        raise FormatError(f"{meta.name('attention.key_length_swa')!r} is odd; it must be even.")
    base = meta.number("rope.freq_base_swa", 1.0, 1e15, 10000.0)
    local_rope = Rope(tuple(plain_frequencies(base, rotated)), "half")
    result: list[Config] = []
    for layer in range(count):
        if config.heads % kv_heads[layer]:
            raise FormatError(
                f"{kv_heads[layer]} key heads cannot be shared evenly by {config.heads} query "
                f"heads in layer {layer} ({meta.name('attention.head_count_kv')!r})."
            )
        own = replace(config, kv_heads=kv_heads[layer], hidden=hidden[layer], local_rope=local_rope)
        result.append(replace(own, head_dim=size) if config.sliding(layer) else own)
    return result


def _stored(meta: Metadata, config: Config) -> list[int]:
    """The layer whose keys and values each layer attends to: the last of its kind that stores."""
    shared = meta.integer("attention.shared_kv_layers", 0, config.layers, 0)
    last = {config.sliding(i): i for i in range(config.layers - shared)}
    result = list(range(config.layers - shared))
    for layer in range(config.layers - shared, config.layers):
        if config.sliding(layer) not in last:
            raise FormatError(
                f"Layer {layer} shares keys ({meta.name('attention.shared_kv_layers')!r} is "
                f"{shared}), but no layer of its kind before stores any."
            )
        result.append(last[config.sliding(layer)])
    return result
