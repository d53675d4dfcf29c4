"""Write random-weight GGUF files in the shapes of mixtures of experts, for measuring speed.

    python benchmarks/make_mixtures.py OUT_DIR --vocabulary smollm2-135m-q4_1.gguf

qwen3-moe: 8 of Qwen3-30B-A3B's 48 layers, d 2048, 32/4 heads of 128, 128 experts of 768, 8 used,
Q4_K. gpt-oss: 4 of gpt-oss-20B's 24 layers, d 2880, 64/8 heads of 64, window 128, 32 experts of
2880, 4 used, MXFP4, the rest Q8_0. The tables have the vocabulary of the given file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from make_models import RNG, TYPES, blocks, copy_vocabulary, raw

MXFP4 = gguf.GGMLQuantizationType.MXFP4


class File:
    """One file as it is written."""

    def __init__(self, path: Path, arch: str, vocabulary: Path, kind: str, width: int) -> None:
        self.writer = gguf.GGUFWriter(path, arch)
        self.kind, self.width = kind, width
        self.writer.add_name(f"{path.stem}, random")
        self.writer.add_embedding_length(width)
        copy_vocabulary(self.writer, vocabulary)
        tokens = len(gguf.GGUFReader(vocabulary).fields["tokenizer.ggml.tokens"].data)
        self.matrix("token_embd", tokens, width)
        self.matrix("output", tokens, width)
        self.vector("output_norm.weight", 1.0, width)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        """A matrix in the file's encoding."""
        kind = TYPES[self.kind]
        self.writer.add_tensor(f"{name}.weight", blocks(self.kind, rows, columns), raw_dtype=kind)

    def vector(self, name: str, value: float, *shape: int) -> None:
        """Equal floats."""
        self.writer.add_tensor(name, np.full(shape, value, np.float32))

    def experts(self, name: str, count: int, rows: int, columns: int) -> None:
        """Matrices of experts: MXFP4 beside Q8_0, else the file's encoding."""
        if self.kind == "q8_0":
            n = count * rows * columns // 32
            scales = RNG.integers(117, 120, (n, 1), dtype=np.uint8)
            data, kind = np.hstack([scales, raw(n, 16)]), MXFP4
        else:
            data, kind = blocks(self.kind, count * rows, columns), TYPES[self.kind]
        data = data.reshape(count, rows, -1)
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    def attention(self, at: str, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        """The projections of a layer."""
        sizes = {"attn_q": heads * head_dim, "attn_k": kv_heads * head_dim}
        sizes["attn_v"] = sizes["attn_k"]
        for name, rows in sizes.items():
            self.matrix(at + name, rows, self.width)
        self.matrix(f"{at}attn_output", self.width, heads * head_dim)
        if bias:
            for name, rows in (sizes | {"attn_output": self.width}).items():
                self.vector(f"{at}{name}.bias", 0.0, rows)

    def router(self, at: str, count: int) -> None:
        """Random, so that tokens choose different experts."""
        data = RNG.standard_normal((count, self.width), dtype=np.float32)
        self.writer.add_tensor(f"{at}ffn_gate_inp.weight", data)

    def close(self) -> None:
        """Write it all."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def shape(
    file: File, layers: int, heads: int, kv_heads: int, head_dim: int, ff: int, experts: int
) -> None:
    """The metadata that both have."""
    w = file.writer
    w.add_block_count(layers)
    w.add_context_length(32_768)
    w.add_feed_forward_length(ff)
    w.add_expert_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_expert_count(experts)


def qwen3_moe(path: Path, vocabulary: Path) -> None:
    """Write one file."""
    layers, width, ff, count = 8, 2048, 768, 128
    file = File(path, "qwen3moe", vocabulary, "q4_k", width)
    shape(file, layers, 32, 4, 128, ff, count)
    file.writer.add_expert_used_count(8)
    file.writer.add_rope_freq_base(1e6)
    for i in range(layers):
        at = f"blk.{i}."
        for name, size in (("attn_norm", width), ("ffn_norm", width), ("attn_q_norm", 128)):
            file.vector(f"{at}{name}.weight", 1.0, size)
        file.vector(f"{at}attn_k_norm.weight", 1.0, 128)
        file.attention(at, 32, 4, 128, False)
        file.router(at, count)
        file.experts(f"{at}ffn_gate_exps", count, ff, width)
        file.experts(f"{at}ffn_up_exps", count, ff, width)
        file.experts(f"{at}ffn_down_exps", count, width, ff)
    file.close()


def gpt_oss(path: Path, vocabulary: Path) -> None:
    """Write one file."""
    layers, width, ff, count = 4, 2880, 2880, 32
    file = File(path, "gpt-oss", vocabulary, "q8_0", width)
    shape(file, layers, 64, 8, 64, ff, count)
    file.writer.add_expert_used_count(4)
    file.writer.add_rope_freq_base(150_000.0)
    file.writer.add_sliding_window(128)
    for i in range(layers):
        at = f"blk.{i}."
        file.vector(f"{at}attn_norm.weight", 1.0, width)
        file.vector(f"{at}post_attention_norm.weight", 1.0, width)
        file.vector(f"{at}attn_sinks.weight", 0.0, 64)
        file.attention(at, 64, 8, 64, True)
        file.router(at, count)
        file.vector(f"{at}ffn_gate_inp.bias", 0.0, count)
        for name, rows in (("gate", ff), ("up", ff), ("down", width)):
            file.experts(f"{at}ffn_{name}_exps", count, rows, width)
            file.vector(f"{at}ffn_{name}_exps.bias", 0.0, count, rows)
    file.close()


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    args = parser.parse_args()
    for name, write in (("qwen3-moe-8l-q4_k", qwen3_moe), ("gpt-oss-4l-mxfp4", gpt_oss)):
        path = args.out / f"{name}.gguf"
        write(path, args.vocabulary)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
