"""Names of tensors: Hugging Face's → GGUF's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gristmill.models.huggingface.mixtures import name_in_layer

_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "transformer.",
    "",
)
"""What stands before a decoder's own names, longest first."""

_ENDS = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "wte": "token_embd",
    "ln_f": "output_norm",
    "final_layernorm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_FUSED = {"mlp.gate_up_proj": "ffn_up"}
_QWEN35 = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_LAYERS: Mapping[str, Mapping[str, str]] = {
    name: _LAYER | own
    for name, own in {
        "chatglm": _FUSED,
        "exaone": {
            **{f"attn.attention.{n}_proj": f"attn_{n}" for n in "qkv"},
            "attn.attention.out_proj": "attn_output",
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
            "mlp.c_fc_0": "ffn_gate",
            "mlp.c_fc_1": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
        "exaone4": _AROUND,
        "gemma2": _AROUND,
        "gemma3": _AROUND,
        "gemma4": {
            **_AROUND,
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
        },
        "glm4": {
            **_FUSED,
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
        },
        "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
        "granitehybrid": {
            "mamba.in_proj": "ssm_in",
            "mamba.conv1d": "ssm_conv1d",
            "mamba.norm": "ssm_norm",
            "mamba.out_proj": "ssm_out",
        },
        "hunyuan-dense": {
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
        },
        "lfm2": {
            "operator_norm": "attn_norm",
            "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "conv.conv": "shortconv.conv",
            "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj",
            "ffn_norm": "ffn_norm",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
        },
        "olmo2": _AROUND,
        "phi2": {
            "self_attn.dense": "attn_output",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
        },
        "phi3": _FUSED,
        "qwen35": _QWEN35,
        "qwen35moe": _QWEN35,
        "qwen3next": _QWEN35,
        "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
        "stablelm": {
            f"self_attn.{name}_layernorm.norms.{head}": f"attn_{name}_norm.{head}"
            for name in "qk"
            for head in range(128)
        },
        "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    }.items()
}

_WHOLE = {
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.dt_bias": "ssm_dt.bias",
}
"""A layer's numbers that are no module's weight or bias."""
_IGNORED = re.compile(
    r"mtp\..*|(model\.)?(vision_tower|vision_model|multi_modal_projector|visual|audio_tower|embed_vision|embed_audio)\..*"
    r"|.*\.rotary_emb\.inv_freq"
)
"""What serves no text: images' encoders, and tables that the config says too."""
_INSIDE = re.compile(r"layers\.(\d+)\.(.+)", re.ASCII)
_IN_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.(.+)\.([a-z_0-9.]+)", re.ASCII)


def rename(name: str, architecture: str) -> str | None:
    """GGUF's name of a tensor, None for one that no text needs, itself if it is unknown.

    The last part of a name ("weight", "bias", "qweight", …) stays as it is.
    """
    if _IGNORED.fullmatch(name):
        return None
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            known = _known(name.removeprefix(prefix), _LAYERS.get(architecture, _LAYER))
            if known is not None:
                upright = known.endswith(".turned") and architecture == "qwen35moe"
                return known.replace(".turned", ".weight") if upright else known
    return name


def _known(name: str, layer: Mapping[str, str]) -> str | None:
    module, _, last = name.rpartition(".")
    if module in _ENDS:
        return f"{_ENDS[module]}.{last}"
    if name.endswith(".layer_scalar"):  # a module's own number, without a "weight"
        return f"blk.{name.split('.')[1]}.layer_output_scale.weight"
    if (inside := _INSIDE.fullmatch(name)) and (found := name_in_layer(inside[2])):
        return f"blk.{int(inside[1])}.{found}"
    if (start := name.split(".", 2))[0] == "layers" and start[-1] in _WHOLE:
        return f"blk.{start[1]}.{_WHOLE[start[-1]]}"
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return None
    module = match[2]
    last = match[3]
    if module not in layer:  # the last part has a point in it: "weight.absmax"
        inside = f"{match[2]}.{match[3]}"
        module = next((m for m in layer if inside.startswith(f"{m}.")), "")
        last = inside.removeprefix(f"{module}.")
    return f"blk.{int(match[1])}.{layer[module]}.{last}" if module else None
