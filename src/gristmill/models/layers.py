"""Small pieces that decoders share: plain functions, called by the model files.

Each piece is two functions: one that says which weights it wants, one that computes. Weights
are named as GGUF names its tensors; merged ones "blk.N.attn_qkv" and "blk.N.ffn_gate_up".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gristmill.backends.ops import Ops, Weight, X
from gristmill.models.config import Config
from gristmill.models.wants import Wants
from gristmill.types import Paged, StateSpec, Window

Weights = Mapping[str, Weight]


def layer_states(config: Config) -> list[StateSpec]:
    """What each layer remembers: its window's keys and values, or all."""
    full = Paged(config.kv_heads, config.head_dim)
    local = Window(config.kv_heads, config.head_dim, config.window)
    return [local if config.sliding(i) else full for i in range(config.layers)]


# ------------------------------------------------------------- attention


def want_attention(wants: Wants, config: Config, layer: int, qk_norm: bool = False) -> None:
    """Norm before, projections (their biases where the file has them), per-head norms."""
    at = f"blk.{layer}."
    heads, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    q, k = (config.heads, config.kv_heads) if config.paired_heads else (0, 0)
    parts = [("attn_q", heads, q), ("attn_k", shared, k), ("attn_v", shared, 0)]
    if wants.has(f"{at}attn_qkv.weight"):
        parts = [("attn_qkv", heads + 2 * shared, 0)]
    plus = config.norm_plus
    wants.vector(f"{at}attn_norm.weight", (f"{at}attn_norm.weight", config.width), plus=plus)
    wants.matrix(
        f"{at}attn_qkv.weight",
        config.width,
        *((f"{at}{name}.weight", rows, paired) for name, rows, paired in parts),
    )
    wants.bias(
        f"{at}attn_qkv.bias",
        *((f"{at}{name}.bias", rows, paired) for name, rows, paired in parts),
    )
    if qk_norm:
        for name in ("attn_q_norm", "attn_k_norm"):
            full = f"{at}{name}.weight"
            wants.vector(full, (full, config.head_dim), plus=plus)
    wants.matrix(f"{at}attn_output.weight", heads, (f"{at}attn_output.weight", config.width))
    wants.bias(f"{at}attn_output.bias", (f"{at}attn_output.bias", config.width))


def attention(ops: Ops, w: Weights, config: Config, layer: int, x: X) -> X:
    """Norm, project, rotate, attend, project back. The residual is the caller's to add."""
    at = f"blk.{layer}."
    heads, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
    x = ops.rms_norm(x, w[f"{at}attn_norm.weight"], config.eps)
    qkv = ops.linear(x, w[f"{at}attn_qkv.weight"], w.get(f"{at}attn_qkv.bias"))
    q, k, v = ops.split(qkv, heads, shared, shared)
    if f"{at}attn_q_norm.weight" in w:
        q = ops.rms_norm(q, w[f"{at}attn_q_norm.weight"], config.eps, config.heads)
        k = ops.rms_norm(k, w[f"{at}attn_k_norm.weight"], config.eps, config.kv_heads)
    rope = config.local_rope if config.sliding(layer) and config.local_rope else config.rope
    seen = ops.attention(
        ops.rope(q, rope, config.head_dim),
        ops.rope(k, rope, config.head_dim),
        v,
        layer,
        scale=config.attention_scale,
        softcap=config.attention_softcap,
    )
    return ops.linear(seen, w[f"{at}attn_output.weight"], w.get(f"{at}attn_output.bias"))


# ---------------------------------------------------------- feed-forward


def want_feed_forward(wants: Wants, config: Config, layer: int) -> None:
    """Norm before, gate and up stacked, down; biases where the file has them."""
    at = f"blk.{layer}."
    norm = f"{at}ffn_norm.weight"
    wants.vector(norm, (norm, config.width), plus=config.norm_plus)
    both = ("ffn_gate", "ffn_up")
    wants.matrix(
        f"{at}ffn_gate_up.weight",
        config.width,
        *((f"{at}{name}.weight", config.hidden) for name in both),
    )
    wants.bias(f"{at}ffn_gate_up.bias", *((f"{at}{name}.bias", config.hidden) for name in both))
    wants.matrix(f"{at}ffn_down.weight", config.hidden, (f"{at}ffn_down.weight", config.width))
    wants.bias(f"{at}ffn_down.bias", (f"{at}ffn_down.bias", config.width))


def feed_forward(
    ops: Ops, w: Weights, config: Config, layer: int, x: X, kind: Literal["silu", "gelu_tanh"]
) -> X:
    """Norm, gate · up, down. The residual is the caller's to add."""
    at = f"blk.{layer}."
    x = ops.rms_norm(x, w[f"{at}ffn_norm.weight"], config.eps)
    both = ops.linear(x, w[f"{at}ffn_gate_up.weight"], w.get(f"{at}ffn_gate_up.bias"))
    return ops.linear(ops.glu(both, kind), w[f"{at}ffn_down.weight"], w.get(f"{at}ffn_down.bias"))


# ------------------------------------------------------------------ ends


def want_ends(wants: Wants, config: Config) -> None:
    """The embedding table, the last norm, and the head unless the table serves as head."""
    wants.matrix("token_embd.weight", config.width, ("token_embd.weight", config.vocab))
    norm = "output_norm.weight"
    wants.vector(norm, (norm, config.width), plus=config.norm_plus)
    if wants.has("output.weight"):
        wants.matrix("output.weight", config.width, ("output.weight", config.vocab))
    wants.bias("output.bias", ("output.bias", config.vocab))


def head(ops: Ops, w: Weights, config: Config, x: X) -> X:
    """Logits of the rows that want them: last norm, then the head or the tied table."""
    x = ops.rms_norm(ops.outputs(x), w["output_norm.weight"], config.eps)
    table = w["output.weight"] if "output.weight" in w else w["token_embd.weight"]
    logits = ops.linear(x, table, w.get("output.bias"))
    return ops.softcap(logits, config.final_softcap) if config.final_softcap else logits
