"""Small pieces that decoders share: plain functions, called by the model files.

Each piece is two functions: one that says which weights it wants, one that computes. Weights
are named as GGUF names its tensors; merged ones "blk.N.attn_qkv" and "blk.N.ffn_gate_up".
"""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.backends.ops import Ops, Weight, X
from gristmill.models.config import Config
from gristmill.models.mixture import is_mixture, mixture, want_mixture
from gristmill.models.wants import Wants
from gristmill.types import Paged, StateSpec, Window

Weights = Mapping[str, Weight]


def layer_states(config: Config) -> list[StateSpec]:
    """What each layer remembers: its window's keys and values, or all."""
    full = Paged(config.kv_heads, config.head_dim)
    local = Window(config.kv_heads, config.head_dim, config.window)
    return [local if config.sliding(i) else full for i in range(config.layers)]


# ----------------------------------------------------------------- norms


def want_norm(wants: Wants, config: Config, name: str) -> None:
    """A norm over the width: its weight, and the bias that a layer norm may have."""
    full = f"{name}.weight"
    wants.vector(full, (full, config.width), plus=config.norm_plus)
    if config.family.norm == "layer":
        wants.bias(f"{name}.bias", (f"{name}.bias", config.width))


def norm(ops: Ops, w: Weights, config: Config, name: str, x: X) -> X:
    """The norm called ``name``; x as it is if the model has none there."""
    weight = w.get(f"{name}.weight")
    if weight is None:
        return x
    if config.family.norm == "layer":
        return ops.layer_norm(x, weight, w.get(f"{name}.bias"), config.eps)
    return ops.rms_norm(x, weight, config.eps)


def _want_qk_norm(wants: Wants, config: Config, name: str, heads: int) -> None:
    full, kind = f"{name}.weight", config.family.qk_norm
    width = config.head_dim * (1 if kind == "head" else heads)
    if kind != "each":
        wants.vector(full, (full, width), plus=config.norm_plus)
    elif wants.has(full):
        wants.flat(full, full, heads, config.head_dim)
    elif wants.has(f"{name}.0.weight"):
        wants.vector(full, *((f"{name}.{i}.weight", config.head_dim) for i in range(heads)))


def _qk_norm(ops: Ops, w: Weights, config: Config, name: str, x: X, heads: int) -> X:
    weight = w.get(f"{name}.weight")
    if weight is None:
        return x
    if config.family.qk_norm == "each":
        return ops.layer_norm(x, weight, None, config.eps, heads)
    return ops.rms_norm(x, weight, config.eps, heads if config.family.qk_norm == "head" else 1)


# ------------------------------------------------------------- attention


def want_attention(wants: Wants, config: Config, layer: int) -> None:
    """Norms around it, projections (their biases where the file has them), norms of q and k."""
    at = f"blk.{layer}."
    heads, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    q, k = (config.heads, config.kv_heads) if config.paired_heads else (0, 0)
    parts = [("attn_q", heads, q), ("attn_k", shared, k), ("attn_v", shared, 0)]
    if wants.has(f"{at}attn_qkv.weight"):
        parts = [("attn_qkv", heads + 2 * shared, 0)]
    if config.family.pre_norm:
        want_norm(wants, config, f"{at}attn_norm")
    wants.matrix(
        f"{at}attn_qkv.weight",
        config.width,
        *((f"{at}{name}.weight", rows, paired) for name, rows, paired in parts),
    )
    wants.bias(
        f"{at}attn_qkv.bias",
        *((f"{at}{name}.bias", rows, paired) for name, rows, paired in parts),
    )
    if config.family.qk_norm:
        _want_qk_norm(wants, config, f"{at}attn_q_norm", config.heads)
        _want_qk_norm(wants, config, f"{at}attn_k_norm", config.kv_heads)
    wants.bias(f"{at}attn_sinks.weight", (f"{at}attn_sinks.weight", config.heads))
    wants.matrix(f"{at}attn_output.weight", heads, (f"{at}attn_output.weight", config.width))
    wants.bias(f"{at}attn_output.bias", (f"{at}attn_output.bias", config.width))
    if config.family.post_norm:
        want_norm(wants, config, f"{at}post_attention_norm")


def attention(ops: Ops, w: Weights, config: Config, layer: int, x: X) -> X:
    """Norm, attend, norm, as the family does it. The residual is the caller's to add."""
    at = f"blk.{layer}."
    y = attend(ops, w, config, layer, norm(ops, w, config, f"{at}attn_norm", x))
    return norm(ops, w, config, f"{at}post_attention_norm", y) if config.family.post_norm else y


def attend(ops: Ops, w: Weights, config: Config, layer: int, x: X) -> X:
    """Project, norm q and k, rotate, attend, project back."""
    at = f"blk.{layer}."
    heads, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = ops.linear(x, w[f"{at}attn_qkv.weight"], w.get(f"{at}attn_qkv.bias"))
    q, k, v = ops.split(qkv, heads, shared, shared)
    late = config.family.qk_norm_late
    if not late:
        q = _qk_norm(ops, w, config, f"{at}attn_q_norm", q, config.heads)
        k = _qk_norm(ops, w, config, f"{at}attn_k_norm", k, config.kv_heads)
    rope, query_rope = config.rotation(layer), config.query_rotation(layer)
    if rope is not None and query_rope is not None:
        q, k = ops.rope(q, query_rope, config.head_dim), ops.rope(k, rope, config.head_dim)
    if late:
        q = _qk_norm(ops, w, config, f"{at}attn_q_norm", q, config.heads)
        k = _qk_norm(ops, w, config, f"{at}attn_k_norm", k, config.kv_heads)
    scale, softcap = config.attention_scale, config.attention_softcap
    sinks = w.get(f"{at}attn_sinks.weight")
    seen = ops.attention(q, k, v, layer, scale=scale, softcap=softcap, sinks=sinks)
    return ops.linear(seen, w[f"{at}attn_output.weight"], w.get(f"{at}attn_output.bias"))


# ---------------------------------------------------------- feed-forward


def is_parallel(w: Weights, config: Config, layer: int) -> bool:
    """Whether both halves of the layer read the same normed activations."""
    kind = config.family.parallel
    return kind == "always" or (kind == "unnormed" and f"blk.{layer}.ffn_norm.weight" not in w)


def want_feed_forward(wants: Wants, config: Config, layer: int) -> None:
    """Norms around it, gate and up stacked, down; biases where the file has them."""
    at, family = f"blk.{layer}.", config.family
    before = f"{at}{family.ffn_norm}"
    optional = family.parallel == "unnormed" and not wants.has(f"{before}.weight")
    if family.pre_norm and family.parallel != "always" and not optional:
        want_norm(wants, config, before)
    if config.mixture and layer >= config.mixture.first:
        want_mixture(wants, config, config.mixture, layer)
        return
    up = (f"{at}ffn_up", config.hidden * (2 if family.fused else 1))
    both = [(f"{at}ffn_gate", config.hidden), up] if family.gated and not family.fused else [up]
    name = f"{at}ffn_gate_up" if family.gated else f"{at}ffn_up"
    wants.matrix(f"{name}.weight", config.width, *((f"{n}.weight", rows) for n, rows in both))
    wants.bias(f"{name}.bias", *((f"{n}.bias", rows) for n, rows in both))
    wants.matrix(f"{at}ffn_down.weight", config.hidden, (f"{at}ffn_down.weight", config.width))
    wants.bias(f"{at}ffn_down.bias", (f"{at}ffn_down.bias", config.width))
    if family.post_norm:
        want_norm(wants, config, f"{at}post_ffw_norm")


def feed_forward(ops: Ops, w: Weights, config: Config, layer: int, x: X) -> X:
    """Norm, transform, norm, as the family does it. The residual is the caller's to add."""
    at, family = f"blk.{layer}.", config.family
    y = norm(ops, w, config, f"{at}{family.ffn_norm}", x) if family.pre_norm else x
    y = transform(ops, w, config, layer, y)
    return norm(ops, w, config, f"{at}post_ffw_norm", y) if family.post_norm else y


def transform(ops: Ops, w: Weights, config: Config, layer: int, x: X) -> X:
    """Up (with a gate where there is one), activation, down; or the layer's experts."""
    at, family = f"blk.{layer}.", config.family
    if config.mixture and is_mixture(w, layer):
        return mixture(ops, w, config, config.mixture, layer, x)
    if family.gated:
        if family.activation not in ("silu", "gelu_tanh", "gelu"):
            raise TypeError(f"no gate is activated by {family.activation}")
        y = ops.linear(x, w[f"{at}ffn_gate_up.weight"], w.get(f"{at}ffn_gate_up.bias"))
        y = ops.glu(y, family.activation)
    else:
        y = ops.linear(x, w[f"{at}ffn_up.weight"], w.get(f"{at}ffn_up.bias"))
        y = ops.activation(y, family.activation)
    return ops.linear(y, w[f"{at}ffn_down.weight"], w.get(f"{at}ffn_down.bias"))


def residual(ops: Ops, config: Config, x: X, y: X) -> X:
    """x + y, y scaled if the model does that."""
    return ops.add(x, y if config.residual_scale == 1.0 else ops.scale(y, config.residual_scale))


# ------------------------------------------------------------------ ends


def want_ends(wants: Wants, config: Config) -> None:
    """The embedding table, the last norm, and the head unless the table serves as head."""
    wants.matrix("token_embd.weight", config.width, ("token_embd.weight", config.vocab))
    want_norm(wants, config, "output_norm")
    if wants.has("output.weight"):
        wants.matrix("output.weight", config.width, ("output.weight", config.vocab))
    wants.bias("output.bias", ("output.bias", config.vocab))


def embed(ops: Ops, w: Weights, config: Config) -> X:
    """The embeddings of the step's tokens."""
    return ops.embed(w["token_embd.weight"], config.embedding_scale)


def head(ops: Ops, w: Weights, config: Config, x: X, logits: bool = True) -> X:
    """Logits of the rows that want them: last norm, then the head or the tied table.

    ``logits`` False stops behind the norm.
    """
    return finish(ops, w, config, ops.outputs(x), logits)


def finish(ops: Ops, w: Weights, config: Config, x: X, logits: bool = True) -> X:
    """The same of rows that are outputs already."""
    x = norm(ops, w, config, "output_norm", x)
    if not logits:
        return x
    table = w["output.weight"] if "output.weight" in w else w["token_embd.weight"]
    x = ops.linear(x, table, w.get("output.bias"))
    if config.logit_scale != 1.0:
        x = ops.scale(x, config.logit_scale)
    return ops.softcap(x, config.final_softcap) if config.final_softcap else x
