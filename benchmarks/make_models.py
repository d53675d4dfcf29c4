"""Write random-weight GGUF files in real shapes, for measuring speed (speed does not depend on
the values). Vocabulary and merges come from a real Qwen2.5 file.

    python benchmarks/make_models.py OUT_DIR --vocabulary qwen2.5-coder-0.5b-q4_k_m.gguf

Writes qwen3-0.6b-{q8_0,q4_k_m,bf16}.gguf: 28 layers, d 1024, ff 3072, 16/8 heads of 128,
vocabulary 151,936, tied. Q4_K_M follows llama.cpp's habit: Q6_K for the embedding and for half
of attn_v and ffn_down.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, FF, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 28, 1024, 3072, 16, 8, 128, 151_936
RNG = np.random.default_rng(0)


def half(value: float, count: int) -> np.ndarray:
    """``count`` half-precision scales near ``value``, as bytes [count, 2]."""
    scales = (value * RNG.uniform(0.9, 1.1, count)).astype(np.float16)
    return scales.view(np.uint8).reshape(count, 2)


def raw(count: int, size: int) -> np.ndarray:
    """Random bytes [count, size]."""
    return RNG.integers(0, 256, (count, size), dtype=np.uint8)


def blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random blocks of a [rows, columns] matrix with weights of about 0.02, as bytes."""
    if kind == "bf16":
        values = RNG.standard_normal((rows, columns), dtype=np.float32) * 0.02
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(rows, -1)
    if kind == "q8_0":
        n = rows * columns // 32
        return np.hstack([half(2.7e-4, n), raw(n, 32)]).reshape(rows, -1)
    if kind in ("q4_0", "q4_1"):
        n = rows * columns // 32
        low = [half(-3e-2, n)] if kind == "q4_1" else []
        return np.hstack([half(4e-3, n), *low, raw(n, 16)]).reshape(rows, -1)
    n = rows * columns // 256
    if kind == "q4_k":
        # value = d·scale·q − dmin·min, scale and min of 6 bits each, q of 4
        return np.hstack([half(8e-5, n), half(6e-4, n), raw(n, 12 + 128)]).reshape(rows, -1)
    scales = RNG.integers(-64, 64, (n, 16), dtype=np.int8).view(np.uint8)
    return np.hstack([raw(n, 192), scales, half(3e-5, n)]).reshape(rows, -1)


TYPES = {
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}


def kind_of(name: str, layer: int, scheme: str) -> str:
    """The encoding of a tensor under a scheme; "q8_0+bf16" has its embedding in bf16."""
    if scheme != "q4_k_m":
        kind, _, embedding = scheme.partition("+")
        return embedding if embedding and name == "token_embd" else kind
    wide = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
    if name == "token_embd" or (name in ("attn_v", "ffn_down") and wide):
        return "q6_k"
    return "q4_k"


def write(path: Path, scheme: str, vocabulary: Path) -> None:
    """Write one file."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name(f"Qwen3-0.6B shapes, random, {scheme}")
    writer.add_block_count(LAYERS)
    writer.add_context_length(40_960)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    copy_vocabulary(writer, vocabulary)

    def matrix(name: str, layer: int, rows: int, columns: int) -> None:
        kind = kind_of(name, layer, scheme)
        full = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        writer.add_tensor(full, blocks(kind, rows, columns), raw_dtype=TYPES[kind])

    def norm(name: str, width: int) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    matrix("token_embd", -1, VOCAB, WIDTH)
    norm("output_norm.weight", WIDTH)
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm.weight", WIDTH)
        norm(f"blk.{i}.ffn_norm.weight", WIDTH)
        norm(f"blk.{i}.attn_q_norm.weight", HEAD_DIM)
        norm(f"blk.{i}.attn_k_norm.weight", HEAD_DIM)
        matrix("attn_q", i, HEADS * HEAD_DIM, WIDTH)
        matrix("attn_k", i, KV_HEADS * HEAD_DIM, WIDTH)
        matrix("attn_v", i, KV_HEADS * HEAD_DIM, WIDTH)
        matrix("attn_output", i, WIDTH, HEADS * HEAD_DIM)
        matrix("ffn_gate", i, FF, WIDTH)
        matrix("ffn_up", i, FF, WIDTH)
        matrix("ffn_down", i, WIDTH, FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_vocabulary(writer: gguf.GGUFWriter, path: Path) -> None:
    """Take tokenizer metadata from a real file."""
    reader = gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type=field.types[-1])
        else:
            writer.add_key_value(name, value, field.types[0])


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    args = parser.parse_args()
    for scheme in ("q8_0", "q4_k_m", "bf16"):
        path = args.out / f"qwen3-0.6b-{scheme}.gguf"
        write(path, scheme, args.vocabulary)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
