"""Mixtures of experts as config.json and the folder's tensors have them, in GGUF's words."""

from __future__ import annotations

import re

from gristmill.errors import UnsupportedError
from gristmill.models.huggingface.scalings import Own
from gristmill.models.huggingface.settings import Settings

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_PARTS = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "gate_up_proj": "gate_up",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
    "input_linear": "gate_up",
    "output_linear": "down",
}
_MODULES = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear": "ffn_gate_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
}
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.(.+)", re.ASCII)
_STACK = re.compile(r"mlp\.experts\.(gate_up_proj|down_proj)(|_bias|\.weight)", re.ASCII)
_SHARED = re.compile(r"(?:mlp\.shared_experts?|shared_mlp)\.(\w+)\.(.+)", re.ASCII)
_ALONE = {"self_attn.sinks": "attn_sinks.weight"}
"""Tensors that are no module's weight or bias."""


def name_in_layer(inside: str) -> str | None:
    """GGUF's name, behind "blk.N.", of a tensor behind "layers.N.", or None.

    Experts that lie apart keep their number: "ffn_gate_exps.3.weight". Stacks that lie (columns,
    rows) have "turned" for "weight".
    """
    if inside in _ALONE:
        return _ALONE[inside]
    module, _, last = inside.rpartition(".")
    if module in _MODULES:
        return f"{_MODULES[module]}.{last}"
    if (found := _EXPERT.fullmatch(inside)) and found[2] in _PARTS:
        return f"ffn_{_PARTS[found[2]]}_exps.{int(found[1])}.{found[3]}"
    if found := _STACK.fullmatch(inside):
        end = {"": "turned", "_bias": "bias", ".weight": "weight"}[found[2]]
        return f"ffn_{_PARTS[found[1]]}_exps.{end}"
    if (found := _SHARED.fullmatch(inside)) and found[1] in _PARTS:
        return f"ffn_{_PARTS[found[1]]}_shexp.{found[2]}"
    return None


def mixture_of(architecture: str, config: Settings) -> Own:
    """Keys of the architecture. Raises UnsupportedError."""
    counts = [key for key in _COUNTS if config.has(key)]
    if not counts:
        return {}
    if config.integer("decoder_sparse_step", 1) != 1 or config.values.get("mlp_only_layers"):
        raise UnsupportedError(
            "config.json: experts in some layers only ('decoder_sparse_step', 'mlp_only_layers') "
            "are not served."
        )
    if config.number("swiglu_alpha", 1.702) != 1.702:
        raise UnsupportedError("config.json: a 'swiglu_alpha' other than 1.702 is not served.")
    own_width = config.has("moe_intermediate_size")
    hidden = config.integer("moe_intermediate_size" if own_width else "intermediate_size")
    own: Own = {
        "expert_count": config.integer(counts[0]),
        "expert_used_count": config.integer("num_experts_per_tok"),
        "expert_feed_forward_length": hidden,
    }
    for key in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if config.has(key):
            own["expert_shared_feed_forward_length"] = config.integer(key)
    if architecture in ("olmoe", "qwen2moe", "qwen3moe", "qwen3next"):
        own["expert_weights_norm"] = config.flag("norm_topk_prob", architecture == "qwen3next")
    if config.has("swiglu_limit"):
        own["swiglu_limit"] = config.number("swiglu_limit")
    return own
