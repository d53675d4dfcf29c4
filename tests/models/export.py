"""Tiny random Hugging Face models, and their export to GGUF by llama.cpp's conversion rules.

The rules (learnt from llama.cpp's ``conversion/``, llama-cpp-python 0.3.36): llama's q and k rows
are permuted so that rotated features lie in pairs, Gemma's norms get their 1 added, Llama 3's
RoPE scaling becomes a tensor of divisors, LongRoPE's two tables become tensors.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import PretrainedConfig, PreTrainedModel

F32 = npt.NDArray[np.float32]

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def random_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A float64 model whose weights are float32 numbers large enough to matter everywhere."""
    torch.manual_seed(seed)
    with torch.random.fork_rng():
        sees = hasattr(config, "vision_config")
        kind = (
            transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
        )
        model = kind.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    gemma = config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(noise * (1.0 if "embed" in name else 1.3 / math.sqrt(weight.shape[1])))
            elif name.endswith("bias"):
                weight.copy_(noise * 0.3)
            else:
                weight.copy_(noise * 0.3 + (0.0 if gemma else 1.0))
    return model.double().eval()


def export(model: PreTrainedModel, path: Path, bf16: bool = False) -> None:
    """Write ``model`` to ``path`` as a GGUF file: float32, or bfloat16 but for its vectors."""
    config = model.config
    arch = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, arch)
    _metadata(writer, config, arch)
    tied = bool(config.tie_word_embeddings)
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            data = weight.detach().float().numpy()
            data = _converted(name, data, config, arch)
            if bf16 and data.ndim > 1:
                packed = quantize(data, GGMLQuantizationType.BF16)
                kind = GGMLQuantizationType.BF16
                writer.add_tensor(_gguf_name(name, arch), packed, raw_dtype=kind)
            else:
                writer.add_tensor(_gguf_name(name, arch), data)
    for name, factors in _rope_tensors(config).items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str, arch: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.{suffix}"
    layer, inner = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{(_GEMMA_LAYER if arch == 'gemma3' else _LAYER)[inner]}.{suffix}"


def _converted(name: str, data: F32, config: PretrainedConfig, arch: str) -> F32:
    if arch == "gemma3" and name.endswith("norm.weight"):
        return data + 1
    if arch == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(data.shape))
    return data


def _metadata(writer: GGUFWriter, config: PretrainedConfig, arch: str) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        rope = rope["full_attention"]
    else:
        writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_string(f"{arch}.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_string(f"{arch}.rope.scaling.type", "yarn")
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key in ("attention_factor", "beta_fast", "beta_slow"):
            if rope.get(key) is not None:
                name = key.replace("attention", "attn")
                writer.add_float32(f"{arch}.rope.scaling.yarn_{name}", rope[key])
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        growth = config.max_position_embeddings / original
        writer.add_string(f"{arch}.rope.scaling.type", "longrope")
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0
        writer.add_rope_scaling_attn_factors(factor)


def _rope_tensors(config: PretrainedConfig) -> dict[str, list[float]]:
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return {
            "rope_factors_long.weight": rope["long_factor"],
            "rope_factors_short.weight": rope["short_factor"],
        }
    if rope.get("rope_type") != "llama3":
        return {}
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    head_dim = config.head_dim
    factors: list[float] = []
    for i in range(0, head_dim, 2):
        turns = original * rope["rope_theta"] ** (-i / head_dim) / (2 * math.pi)
        smooth = (turns - low) / (high - low)
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": factors}
