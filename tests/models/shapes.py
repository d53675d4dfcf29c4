"""A tiny config of every dense family, as ``transformers`` writes it: what each has of its own.

Needs ``transformers``; the tests that need none read what
``tests/golden/models/make_families.py`` made of these.
"""

# transformers' configs take more than their signatures say.
# pyright: reportArgumentType=false, reportCallIssue=false, reportConstantRedefinition=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import PretrainedConfig

COMMON: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FOUR = {"num_hidden_layers": 4}
WIDE = COMMON | {"hidden_size": 32}
NARROW = {key: value for key, value in COMMON.items() if key != "head_dim"} | {"hidden_size": 32}
"""For the families whose heads divide the width."""
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
    "long_factor": [1.0, 2.5, 4.0],
    "short_factor": [1.0, 1.25, 1.5],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CONFIGS: dict[str, PretrainedConfig] = {
    "arcee": transformers.ArceeConfig(**COMMON),
    "cohere": transformers.CohereConfig(**NARROW, use_qk_norm=True),
    "cohere2": transformers.Cohere2Config(**WIDE | FOUR, sliding_window=9, rotary_pct=1.0),
    "ernie4_5": transformers.Ernie4_5Config(**COMMON, use_bias=True),
    "exaone": transformers.ExaoneConfig(**COMMON, rope_parameters=LLAMA3),
    "exaone4": transformers.Exaone4Config(**WIDE | FOUR, sliding_window=9, rope_parameters=LLAMA3),
    "exaone4-global": transformers.Exaone4Config(
        **WIDE, sliding_window=None, layer_types=["full_attention"] * 2
    ),
    "gemma": transformers.GemmaConfig(**COMMON),
    "gemma2": transformers.Gemma2Config(**COMMON, sliding_window=9, query_pre_attn_scalar=8),
    "gemma4": transformers.Gemma4TextConfig(
        **COMMON | {"num_hidden_layers": 6},
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        global_head_dim=16,
        vocab_size_per_layer_input=40,
        hidden_size_per_layer_input=6,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        sliding_window=9,
        final_logit_softcapping=20.0,
    ),
    "gemma4-31b": transformers.Gemma4TextConfig(
        **COMMON | {"num_hidden_layers": 3},
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        final_logit_softcapping=30.0,
        hidden_size_per_layer_input=0,
        sliding_window=9,
    ),
    "glm": transformers.GlmConfig(**WIDE, rms_norm_eps=1e-5),
    "glm4": transformers.Glm4Config(**COMMON),
    "glm4v": transformers.Glm4vConfig(
        text_config=COMMON
        | {"hidden_size": 48, "head_dim": 12}
        | {
            "rope_parameters": SECTIONS | {"mrope_section": [1, 1, 1], "partial_rotary_factor": 0.5}
        },
        vision_config={
            "depth": 1,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_heads": 2,
            "out_hidden_size": 48,
        },
    ),
    "granite": transformers.GraniteConfig(
        **NARROW,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.3,
        logits_scaling=5.0,
    ),
    "hunyuan_v1_dense": transformers.HunYuanDenseV1Config(
        **COMMON | {"max_position_embeddings": 32768},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 20.0},
    ),
    "internlm3": transformers.InternLM3Config(**COMMON),
    "jais2": transformers.Jais2Config(**COMMON),
    "lfm2": transformers.Lfm2Config(
        **NARROW | FOUR,
        block_multiple_of=4,
        layer_types=["conv", "conv", "full_attention", "conv"],
    ),
    "llama3": transformers.LlamaConfig(**COMMON, rope_parameters=LLAMA3),
    "ministral": transformers.MinistralConfig(
        **COMMON, sliding_window=9, layer_types=["full_attention", "sliding_attention"]
    ),
    "ministral3": transformers.Ministral3Config(
        **COMMON,
        rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
    ),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**COMMON, sliding_window=9),
    "nemotron": transformers.NemotronConfig(**WIDE),
    "olmo2": transformers.Olmo2Config(**NARROW),
    "olmo3": transformers.Olmo3Config(
        **NARROW | FOUR,
        sliding_window=9,
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "minicpm": transformers.GraniteConfig(  # whose arithmetic it is: see DISGUISED
        **NARROW,
        embedding_multiplier=12.0,
        residual_multiplier=1.4 / 2**0.5,
        attention_multiplier=8**-0.5,
        logits_scaling=32 / 8,
    ),
    "phi2": transformers.PhiConfig(**NARROW | {"num_key_value_heads": 4, "intermediate_size": 128}),
    "phi3": transformers.Phi3Config(
        **NARROW | {"num_key_value_heads": 4},
        rope_parameters=LONGROPE,
        original_max_position_embeddings=64,
    ),
    "phi3-window": transformers.Phi3Config(**NARROW, sliding_window=9),
    "gemma3": transformers.Gemma3TextConfig(
        **COMMON | {"num_hidden_layers": 7}, sliding_window=9, query_pre_attn_scalar=8
    ),
    "qwen2": transformers.Qwen2Config(**NARROW),
    "qwen2_vl": transformers.Qwen2VLConfig(
        text_config=NARROW | {"rope_parameters": SECTIONS},
        vision_config={"depth": 1, "embed_dim": 8, "hidden_size": 32, "num_heads": 2},
    ),
    "qwen3_vl": transformers.Qwen3VLConfig(
        text_config=COMMON | {"rope_parameters": SECTIONS},
        vision_config={
            "depth": 1,
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_heads": 2,
            "out_hidden_size": 24,
            "num_position_embeddings": 4,
            "deepstack_visual_indexes": [],
        },
    ),
    "qwen3_5": transformers.Qwen3_5TextConfig(
        **COMMON | FOUR | {"head_dim": 16},
        linear_key_head_dim=6,
        linear_value_head_dim=5,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        tie_word_embeddings=True,
    ),
    "qwen3_5-square": transformers.Qwen3_5TextConfig(
        **COMMON | FOUR | {"head_dim": 16},
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters=SECTIONS | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
    ),
    "qwen3": transformers.Qwen3Config(**COMMON, tie_word_embeddings=True),
    "seed_oss": transformers.SeedOssConfig(**COMMON),
    "smollm3": transformers.SmolLM3Config(**NARROW | FOUR),
    "stablelm": transformers.StableLmConfig(**NARROW, use_qkv_bias=True),
    "stablelm-qk": transformers.StableLmConfig(**NARROW, qk_layernorm=True),
    "stablelm-parallel": transformers.StableLmConfig(
        **NARROW, use_parallel_residual=True, rope_parameters={"partial_rotary_factor": 0.5}
    ),
    "starcoder2": transformers.Starcoder2Config(**NARROW),
    "starcoder2-window": transformers.Starcoder2Config(**NARROW, sliding_window=9),
}


MIXED = {key: value for key, value in NARROW.items() if key != "head_dim"}
MANY = {"num_experts": 6, "num_experts_per_tok": 3}
FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
YARN_MIXED = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.3,
    "logits_scaling": 5.0,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_state": 6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
CONFIGS |= {
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **MIXED, **MANY, head_dim=8, moe_intermediate_size=12, norm_topk_prob=True
    ),
    "qwen3_moe-raw": transformers.Qwen3MoeConfig(
        **MIXED, **MANY, head_dim=8, moe_intermediate_size=7, norm_topk_prob=False
    ),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **MIXED, **MANY, moe_intermediate_size=12, shared_expert_intermediate_size=16
    ),
    "mixtral": transformers.MixtralConfig(**MIXED, **FEW),
    "olmoe": transformers.OlmoeConfig(**MIXED | {"num_key_value_heads": 4}, **MANY),
    "gpt_oss": transformers.GptOssConfig(
        **MIXED, **FEW, head_dim=8, sliding_window=9, rope_parameters=YARN_MIXED, swiglu_limit=7.0
    ),
    "granitemoe": transformers.GraniteMoeConfig(**MIXED, **FEW, **GRANITE),
    "granitemoeshared": transformers.GraniteMoeSharedConfig(
        **MIXED, **FEW, **GRANITE, shared_intermediate_size=24
    ),
    "qwen3_5_moe": transformers.Qwen3_5MoeTextConfig(
        **{k: v for k, v in MIXED.items() if k != "intermediate_size"} | FOUR | MANY,
        head_dim=16,
        moe_intermediate_size=12,
        shared_expert_intermediate_size=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters=SECTIONS | {"mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25},
    ),
    "qwen3_next": transformers.Qwen3NextConfig(
        **MIXED | FOUR,
        **MANY,
        head_dim=16,
        moe_intermediate_size=12,
        shared_expert_intermediate_size=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    ),
    "granitemoehybrid": transformers.GraniteMoeHybridConfig(
        **MIXED | FOUR, **FEW, **GRANITE, **MAMBA, shared_intermediate_size=24
    ),
    "granitemoehybrid-dense": transformers.GraniteMoeHybridConfig(
        **MIXED | FOUR,
        **GRANITE,
        **MAMBA,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=20,
        tie_word_embeddings=True,
    ),
    "granitemoehybrid-rope": transformers.GraniteMoeHybridConfig(
        **MIXED,
        **GRANITE,
        **MAMBA | {"layer_types": ["full_attention"] * 2},
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=20,
        position_embedding_type="rope",
    ),
}
"""Mixtures of experts."""


def auto(config: PretrainedConfig) -> Any:
    """The class that makes a model of it, as a whole: with its eyes, if it has any."""
    if hasattr(config, "vision_config"):
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


ONLY_FOLDERS = {
    "mistral-window": "llama.cpp's converter leaves the window out",
    "starcoder2-window": "llama.cpp's converter leaves the window out",
    "stablelm-qk": "llama.cpp's converter loses the norms of heads",
}
"""Models whose GGUF file, if there is one, is not the same model."""

DISGUISED: dict[str, dict[str, Any]] = {
    "exaone": {  # as on the hub, where its own code is with it
        "num_hidden_layers": None,
        "num_layers": 2,
        "rms_norm_eps": None,
        "layer_norm_epsilon": 1e-5,
        "hidden_act": None,
        "activation_function": "silu",
    },
    **{  # as on the hub
        name: {"layer_types": ["mamba", "attention", "mamba", "mamba"]}
        for name in ("granitemoehybrid", "granitemoehybrid-dense")
    },
    "granitemoehybrid-rope": {"layer_types": ["attention", "attention"]},
    "minicpm": {
        "model_type": "minicpm",
        **dict.fromkeys(GRANITE, None),
        "architectures": ["MiniCPMForCausalLM"],
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 8,
    },
}
"""What config.json says of models that ``transformers`` has no code for, once another's code
that does the same has made them."""


def disguise(name: str, folder: Path) -> None:
    """Write the config.json that a model of this family would have."""
    if name in DISGUISED:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        said = {k: v for k, v in (config | DISGUISED[name]).items() if v is not None}
        path.write_text(json.dumps(said), encoding="utf-8")
