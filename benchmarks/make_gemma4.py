"""Write a random-weight GGUF file in the shape of Gemma 4 E2B, for measuring speed.

    python benchmarks/make_gemma4.py OUT.gguf --vocabulary smollm2-135m-q4_1.gguf

35 layers, d 1536, ff 6144 (12,288 in the last 20, which share keys), 8/1 heads of 256 (512 in
every fifth layer), window 512, 256 features of each layer's own embedding. The tables have the
vocabulary of the given file, not Gemma's 262,144 tokens, so that the file is of moderate size.
Q4_K, as llama.cpp's Q4_K_M mostly is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from make_models import TYPES, blocks, copy_vocabulary

LAYERS, WIDTH, FF, HEADS, SHARED, EXTRA, WINDOW = 35, 1536, 6144, 8, 20, 256, 512


def full(layer: int) -> bool:
    """Whether the layer sees all."""
    return layer % 5 == 4


def write(path: Path, vocabulary: Path) -> None:
    """Write the file."""
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_name("Gemma 4 E2B shape, random, q4_k")
    writer.add_block_count(LAYERS)
    writer.add_context_length(131_072)
    writer.add_embedding_length(WIDTH)
    own = LAYERS - SHARED
    writer.add_feed_forward_length([FF if i < own else 2 * FF for i in range(LAYERS)])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(512)
    writer.add_value_length(512)
    writer.add_key_length_swa(256)
    writer.add_value_length_swa(256)
    writer.add_rope_dimension_count(512)
    writer.add_rope_dimension_count_swa(256)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([not full(i) for i in range(LAYERS)])
    writer.add_shared_kv_layers(SHARED)
    writer.add_embedding_length_per_layer_input(EXTRA)
    writer.add_final_logit_softcapping(30.0)
    writer.add_layer_norm_rms_eps(1e-6)
    copy_vocabulary(writer, vocabulary)
    tokens = len(gguf.GGUFReader(vocabulary).fields["tokenizer.ggml.tokens"].data)

    def matrix(name: str, rows: int, columns: int) -> None:
        kind = "q6_k" if name == "token_embd" else "q4_k"
        writer.add_tensor(f"{name}.weight", blocks(kind, rows, columns), raw_dtype=TYPES[kind])

    def norm(name: str, width: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", tokens, WIDTH)
    matrix("per_layer_token_embd", tokens, LAYERS * EXTRA)
    matrix("per_layer_model_proj", LAYERS * EXTRA, WIDTH)
    norm("per_layer_proj_norm", EXTRA)
    norm("output_norm", WIDTH)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * 64 + [1e30] * 192, np.float32))
    for i in range(LAYERS):
        size, at = 512 if full(i) else 256, f"blk.{i}."
        names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        for name in names:
            norm(at + name, WIDTH)
        norm(f"{at}attn_q_norm", size)
        matrix(f"{at}attn_q", HEADS * size, WIDTH)
        matrix(f"{at}attn_output", WIDTH, HEADS * size)
        if i < own:
            norm(f"{at}attn_k_norm", size)
            matrix(f"{at}attn_k", size, WIDTH)
            matrix(f"{at}attn_v", size, WIDTH)
        ff = FF if i < own else 2 * FF
        matrix(f"{at}ffn_gate", ff, WIDTH)
        matrix(f"{at}ffn_up", ff, WIDTH)
        matrix(f"{at}ffn_down", WIDTH, ff)
        matrix(f"{at}inp_gate", EXTRA, WIDTH)
        matrix(f"{at}proj", WIDTH, EXTRA)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    args = parser.parse_args()
    write(args.out, args.vocabulary)
    print(args.out, args.out.stat().st_size)


if __name__ == "__main__":
    main()
