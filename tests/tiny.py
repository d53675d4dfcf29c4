"""Tiny random GGUF models, written with the `gguf` package, small enough to make in a test.

They say nothing sensible, but they are whole: every tensor their architecture wants, a
byte-level BPE tokenizer (256 bytes, some merges, ChatML's special tokens) and a template, so
that a real server can load and serve them.

    tiny = tiny_llama(tmp_path / "t.gguf", encoding="q4_k", arch="qwen3")
    tiny.weights["blk.0.attn_q.weight"]    # float32, as the `gguf` package decodes the file
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize, quantize

from gristmill.quant import ENCODINGS
from tests.quant.blocks import random_blocks

F32 = npt.NDArray[np.float32]

Arch = Literal["llama", "qwen2", "qwen3", "gemma3", "gemma4"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens; the first is BOS and padding, the last ends a turn (EOS)."""
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""User-defined tokens: found in text like special ones, but printed."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TEXT = """The miller brings the grain to the mill and the mill turns the grain into flour.
When the water is high the wheel turns faster, and the stones grind the corn and the wheat.
There is nothing in the house that does not smell of bread; the user and the assistant eat."""
"""What the merges are learnt from."""


class RopeScaling(TypedDict):
    """How a tiny model stretches its rotary positions.

    ``type`` "linear" and "yarn" take ``factor``; "llama3" takes ``factor`` and its two
    frequency factors and writes the per-pair divisors as a tensor; "longrope" writes random
    long and short ones. ``original`` is the context before stretching.
    """

    type: Literal["linear", "yarn", "llama3", "longrope"]
    factor: NotRequired[float]
    original: NotRequired[int]
    low_freq_factor: NotRequired[float]
    high_freq_factor: NotRequired[float]
    attn_factor: NotRequired[float]


@dataclass(frozen=True)
class Tiny:
    """A written model: sizes, weights as the file decodes (row-major), tokens by id."""

    path: Path
    arch: Arch
    layers: int
    d: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    context: int
    window: int
    eps: float
    theta: float
    rope_scaling: RopeScaling | None
    weights: Mapping[str, F32]
    tokens: tuple[str, ...]
    merges: tuple[str, ...]

    def id(self, token: str) -> int:
        """The id of a token, as written in the vocabulary."""
        return self.tokens.index(token)


def tiny_llama(
    path: Path,
    encoding: str = "f32",
    *,
    arch: Arch = "llama",
    layers: int | None = None,
    d: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ff: int | None = None,
    vocab: int | None = None,
    context: int = 512,
    window: int = 32,
    rope_scaling: RopeScaling | None = None,
    tied: bool | None = None,
    encodings: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Tiny:
    """Write a random model of ``arch`` to ``path``.

    Matrices are in ``encoding``, but in ``encodings[part]`` where a part of the tensor's name
    is given ({"attn_v": "q6_k"}). Sizes left None are the smallest that the encodings allow:
    d 64 (256 for blocks of 256), ff 2·d, head_dim d / heads, layers 2 (6 for Gemma, so that
    some have full attention; of Gemma 4's the last two share keys), and a vocabulary of exactly
    its tokens. ``tied``: no matrix of its own for the output (Gemma's default). Equal arguments
    give equal files.
    """
    used = (encoding, *(encodings or {}).values())
    d = d or max(64, *(ENCODINGS[name].block for name in used))
    tokens, kinds, merges = vocabulary(vocab)
    scales = rope_scaling
    tiny = Tiny(
        path, arch, layers or (6 if arch.startswith("gemma") else 2), d, heads, kv_heads,
        head_dim or d // heads, ff or 2 * d, context, window, 1e-6, 10000.0, scales,
        {}, tokens, merges,
    )  # fmt: skip
    writer = gguf.GGUFWriter(path, arch)
    _write_config(writer, tiny)
    _write_tokenizer(writer, tiny, kinds)
    weights: dict[str, F32] = {}
    rng = np.random.default_rng(seed)
    shapes = _shapes(tiny, arch.startswith("gemma") if tied is None else tied)
    # Logits of some size, so that the best token is not a matter of rounding; but embeddings
    # that are the output too would then only repeat the last token.
    loud = 4.0 if "output.weight" in shapes else 1.0
    for name, shape in shapes.items():
        chosen = next((e for part, e in (encodings or {}).items() if part in name), encoding)
        gain = loud if name in ("token_embd.weight", "output.weight") else 1.0
        _write_tensor(writer, weights, name, shape, chosen, gain, rng)
    for name, values in _rope_tensors(tiny, rng).items():
        writer.add_tensor(name, values)
        weights[name] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(tiny, weights=weights)


# ------------------------------------------------------------- tensors


def _shapes(tiny: Tiny, tied: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of the architecture, row-major, in the order of the file."""
    d, q, kv = tiny.d, tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(tiny.tokens), d)}
    for i in range(tiny.layers):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (d,),
            "attn_q.weight": (q, d),
            "attn_k.weight": (kv, d),
            "attn_v.weight": (kv, d),
            "attn_output.weight": (d, q),
            "ffn_norm.weight": (d,),
            "ffn_gate.weight": (tiny.ff, d),
            "ffn_up.weight": (tiny.ff, d),
            "ffn_down.weight": (d, tiny.ff),
        }
        if tiny.arch == "qwen2":
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if tiny.arch in ("qwen3", "gemma3"):
            layer |= {"attn_q_norm.weight": (tiny.head_dim,)}
            layer |= {"attn_k_norm.weight": (tiny.head_dim,)}
        if tiny.arch in ("gemma3", "gemma4"):
            layer |= {"post_attention_norm.weight": (d,), "post_ffw_norm.weight": (d,)}
        if tiny.arch == "gemma4":
            layer = _gemma4_layer(tiny, i, layer)
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    shapes["output_norm.weight"] = (d,)
    if tiny.arch == "gemma4":
        shapes["per_layer_token_embd.weight"] = (len(tiny.tokens), tiny.layers * d)
        shapes["per_layer_model_proj.weight"] = (tiny.layers * d, d)
        shapes["per_layer_proj_norm.weight"] = (d,)
    if not tied:
        shapes["output.weight"] = (len(tiny.tokens), d)
    return shapes


def _gemma4_layer(
    tiny: Tiny, i: int, layer: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Every third layer sees all, with larger heads; the last two have no keys of their own."""
    d, size = tiny.d, tiny.head_dim * (2 if i % 3 == 2 else 1)
    q, kv = tiny.heads * size, tiny.kv_heads * size
    layer |= {"attn_q.weight": (q, d), "attn_output.weight": (d, q), "attn_q_norm.weight": (size,)}
    if i < tiny.layers - 2:
        layer |= {"attn_k.weight": (kv, d), "attn_v.weight": (kv, d), "attn_k_norm.weight": (size,)}
    else:
        del layer["attn_k.weight"], layer["attn_v.weight"]
    return layer | {"inp_gate.weight": (d, d), "proj.weight": (d, d), "post_norm.weight": (d,)}


def _write_tensor(
    writer: gguf.GGUFWriter,
    weights: dict[str, F32],
    name: str,
    shape: tuple[int, ...],
    encoding: str,
    gain: float,
    rng: np.random.Generator,
) -> None:
    if len(shape) == 1:
        mean = 1 if "norm" in name else 0
        values = (mean + rng.normal(0, 0.1, shape)).astype(np.float32)
        writer.add_tensor(name, values)
        weights[name] = values
        return
    kind = gguf.GGMLQuantizationType[encoding.upper()]
    raw = _encoded(encoding, kind, shape, gain / shape[1] ** 0.5, rng)
    writer.add_tensor(name, raw, raw_dtype=kind)
    try:
        weights[name] = dequantize(raw, kind).reshape(shape)
    except NotImplementedError:
        weights[name] = ENCODINGS[encoding].decode(raw.reshape(-1).view(np.uint8), shape, name)


def _encoded(
    encoding: str,
    kind: gguf.GGMLQuantizationType,
    shape: tuple[int, ...],
    spread: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.generic]:
    """Normal weights where the `gguf` package writes the encoding, else random blocks."""
    try:
        return quantize(rng.normal(0, spread, shape).astype(np.float32), kind)
    except NotImplementedError:
        count = shape[0] * shape[1] // ENCODINGS[encoding].block
        return random_blocks(encoding, count, rng, spread).reshape(shape[0], -1)


def _rope_tensors(tiny: Tiny, rng: np.random.Generator) -> dict[str, F32]:
    scaling = tiny.rope_scaling
    if tiny.arch == "gemma4":  # a quarter of the features turn
        turning = tiny.head_dim // 4
        still = [1e30] * (tiny.head_dim - turning)
        return {"rope_freqs.weight": np.array([1.0] * turning + still, np.float32)}
    pairs = tiny.head_dim // 2
    if scaling is None or scaling["type"] in ("linear", "yarn"):
        return {}
    if scaling["type"] == "longrope":
        return {
            "rope_factors_long.weight": rng.uniform(1, 8, pairs).astype(np.float32),
            "rope_factors_short.weight": rng.uniform(1, 2, pairs).astype(np.float32),
        }
    # Llama 3.1: pairs that turn fast keep their speed, slow ones are divided by the factor.
    factor, original = scaling.get("factor", 8.0), scaling.get("original", tiny.context // 4)
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    turns = original * tiny.theta ** (-np.arange(pairs) / pairs) / (2 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": (1 / (keep + (1 - keep) / factor)).astype(np.float32)}


# ------------------------------------------------------------ metadata


def _write_config(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    writer.add_name(f"tiny random {tiny.arch}")
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.d)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.ff)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    size = tiny.head_dim * (2 if tiny.arch == "gemma4" else 1)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(tiny.eps)
    writer.add_rope_freq_base(tiny.theta)
    writer.add_vocab_size(len(tiny.tokens))
    if tiny.arch == "llama":
        writer.add_rope_dimension_count(tiny.head_dim)
    if tiny.arch in ("gemma3", "gemma4"):
        writer.add_sliding_window(tiny.window)
    if tiny.arch == "gemma4":
        writer.add_sliding_window_pattern([i % 3 != 2 for i in range(tiny.layers)])
        writer.add_shared_kv_layers(2)
        writer.add_embedding_length_per_layer_input(tiny.d)
        writer.add_key_length_swa(tiny.head_dim)
        writer.add_value_length_swa(tiny.head_dim)
        writer.add_rope_dimension_count_swa(tiny.head_dim)
    scaling = tiny.rope_scaling
    if scaling is None or scaling["type"] == "llama3":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["type"]))
    if "factor" in scaling:
        writer.add_rope_scaling_factor(scaling["factor"])
    if "attn_factor" in scaling:
        writer.add_rope_scaling_attn_factors(scaling["attn_factor"])
    if scaling["type"] != "linear":
        writer.add_rope_scaling_orig_ctx_len(scaling.get("original", tiny.context // 4))


def _write_tokenizer(writer: gguf.GGUFWriter, tiny: Tiny, kinds: tuple[int, ...]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(tiny.tokens))
    writer.add_token_types(list(kinds))
    writer.add_token_merges(list(tiny.merges))
    writer.add_bos_token_id(tiny.id("<|endoftext|>"))
    writer.add_eos_token_id(tiny.id("<|im_end|>"))
    writer.add_pad_token_id(tiny.id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


# ----------------------------------------------------------- vocabulary


def vocabulary(size: int | None = None) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Tokens, their GGUF types, and merges: bytes, merged pieces, SPECIAL, MARKS, padding.

    ``size`` None adds no padding. Raises ValueError if the tokens do not fit ``size``.
    """
    alphabet = tuple(_byte_names().values())
    merges = _learn_merges(120)
    tokens = (*alphabet, *(m.replace(" ", "") for m in merges), *SPECIAL, *MARKS)
    kinds = [gguf.TokenType.NORMAL] * (len(alphabet) + len(merges))
    kinds += [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.USER_DEFINED] * len(MARKS)
    padding = 0 if size is None else size - len(tokens)
    if padding < 0:
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} tokens, not {size}")
    tokens += tuple(f"[PAD{i}]" for i in range(padding))
    kinds += [gguf.TokenType.UNUSED] * padding
    return tokens, tuple(int(kind) for kind in kinds), merges


@cache
def _byte_names() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte: itself if visible, else 256, 257, …"""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {b: chr(b if b in visible else 256 + hidden.index(b)) for b in range(256)}


@cache
def _learn_merges(count: int) -> tuple[str, ...]:
    """Byte-pair merges inside the words of _TEXT, the most frequent pair first."""
    names = _byte_names()
    words = [[names[byte] for byte in word.encode()] for word in re.findall(r" ?[A-Za-z]+", _TEXT)]
    merges: list[str] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(f"{left} {right}")
        words = [_merge(word, left, right) for word in words]
    return tuple(merges)


def _merge(word: list[str], left: str, right: str) -> list[str]:
    out: list[str] = []
    for piece in word:
        if out and out[-1] == left and piece == right:
            out[-1] = left + right
        else:
            out.append(piece)
    return out
