"""Write random-weight Hugging Face folders of Qwen3-0.6B's shapes in quantised formats, and GGUF
files of the same shapes to compare with (speed does not depend on the values).

    python benchmarks/make_formats.py OUT_DIR --vocabulary qwen2.5-coder-0.5b-q4_k_m.gguf

The embedding is tied. As the formats' own tools do, all but MLX leave it in bfloat16, so there
are two files of Q4_1 and Q8_0: with an embedding in bfloat16, and with one in the same encoding.
The folders have no tokenizer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from make_models import FF, HEAD_DIM, HEADS, KV_HEADS, LAYERS, VOCAB, WIDTH, raw, write

RNG = np.random.default_rng(0)
NAMES = {"i4": "I32", "u4": "U32", "i1": "I8", "u1": "U8", "i8": "I64", "f2": "F16", "f4": "F32",
         "V1": "F8_E4M3"}  # fmt: skip

Tensors = dict[str, np.ndarray]
Writer = Callable[[int, int, int], Tensors]
"""Rows, columns, which input it reads → tensors by what follows the module's name."""


def words(*shape: int) -> np.ndarray:
    return RNG.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)


def scales(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 0.002 + 0.002).astype(np.float16)


def awq(n: int, k: int, _: int) -> Tensors:
    zeros = np.full((k // 128, n // 8), 0x78787878, np.int32)
    return {"qweight": words(k, n // 8), "qzeros": zeros, "scales": scales(k // 128, n)}


def gptq(n: int, k: int, _: int) -> Tensors:
    """Symmetric: the zeros are 8, stored as 7."""
    zeros = np.full((k // 128, n // 8), 0x77777777, np.int32)
    order = (np.arange(k) // 128).astype(np.int32)
    made = {"qweight": words(k // 8, n), "qzeros": zeros, "scales": scales(k // 128, n)}
    return made | {"g_idx": order}


def desc_act(n: int, k: int, source: int) -> Tensors:
    """Matrices that read the same input were calibrated on the same: their order is one."""
    order = np.random.default_rng(source).permutation(k) // 128
    return gptq(n, k, source) | {"g_idx": order.astype(np.int32)}


def packed(n: int, k: int, _: int) -> Tensors:
    shape = np.array([n, k], np.int64)
    codes = {"weight_packed": words(n, k // 8), "weight_shape": shape}
    return codes | {"weight_scale": scales(n, k // 128)}


def int8(n: int, k: int, _: int) -> Tensors:
    codes = RNG.integers(-127, 128, (n, k), dtype=np.int8)
    return {"weight": codes, "weight_scale": RNG.random((n, 1), np.float32) * 1e-4 + 2e-4}


def llm_int8(n: int, k: int, _: int) -> Tensors:
    codes = RNG.integers(-127, 128, (n, k), dtype=np.int8)
    absmax = RNG.random(n, np.float32) * 0.02 + 0.03
    return {"weight": codes, "SCB": absmax, "weight_format": np.zeros((), np.uint8)}


def e4m3(*shape: int) -> np.ndarray:
    """Values as those of weights lie: of a normal distribution, the largest near 448."""
    codes = np.arange(127, dtype=np.int32)
    table = np.where(codes < 8, codes / 8 * 2.0**-6, (1 + codes % 8 / 8) * 2.0 ** (codes // 8 - 7))
    values = RNG.standard_normal(shape, dtype=np.float32) * np.float32(110)
    magnitudes = np.searchsorted(table, np.minimum(np.abs(values), 448)).clip(0, 126)
    return (magnitudes.astype(np.uint8) | (values < 0).astype(np.uint8) << 7).view("V1")


def fp8(block: int) -> Writer:
    def parts(n: int, k: int, _: int) -> Tensors:
        if block:
            grid = RNG.random((-(-n // block), -(-k // block)), np.float32) * 1e-5 + 1.8e-4
            return {"weight": e4m3(n, k), "weight_scale_inv": grid}
        return {"weight": e4m3(n, k), "weight_scale": RNG.random((n, 1), np.float32) * 1e-5 + 1e-4}

    return parts


def mxfp8(n: int, k: int, _: int) -> Tensors:
    powers = RNG.integers(113, 116, (n, k // 32), dtype=np.uint8)
    return {"weight": e4m3(n, k).view(np.uint32), "scales": powers}


def nvfp4(n: int, k: int, _: int) -> Tensors:
    return {
        "weight": raw(n, k // 2),
        "weight_scale": RNG.integers(0x60, 0x7F, (n, k // 16), dtype=np.uint8).view("V1"),
        "weight_scale_2": np.array(3e-5, np.float32),
    }


NF4 = np.array(
    [-1, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0,
     0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1], np.float32,
)  # fmt: skip


def nf4(n: int, k: int, _: int) -> Tensors:
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}
    return {
        "weight": raw(n * k // 2, 1),
        "weight.absmax": RNG.random(n * k // 64, np.float32) * 0.01 + 0.03,
        "weight.quant_map": NF4,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }


def mlx(bits: int, group: int) -> Writer:
    def parts(n: int, k: int, _: int) -> Tensors:
        scale = scales(n, k // group) * np.float16(16 / (1 << bits))
        lows = scale * np.float16(0.5 - (1 << bits) / 2)
        return {
            "weight": words(n, k * bits // 32).view(np.uint32),
            "scales": scale,
            "biases": lows,
        }

    return parts


def hqq(n: int, k: int, _: int) -> Tensors:
    groups = n * k // 64
    return {
        "W_q": raw(groups // 2, 64),
        "scale": scales(groups, 1),
        "zero": (RNG.random((groups, 1)) + 7).astype(np.float16),
        "nbits": np.array(4, np.int32),
        "group_size": np.array(64, np.int32),
        "axis": np.array(1, np.int32),
        "shape": np.array([n, k], np.int64),
    }


def method(name: str, **settings: object) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": name, **settings}}


def compressed(form: str, **weights: object) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return method("compressed-tensors", format=form, config_groups=groups, ignore=["lm_head"])


FORMATS: Mapping[str, tuple[Writer, dict[str, Any], str]] = {
    "awq-4": (awq, method("awq", bits=4, group_size=128, version="gemm"), "q4_1+bf16"),
    "gptq-4": (gptq, method("gptq", bits=4, group_size=128, desc_act=False), "q4_0+bf16"),
    "gptq-4-desc-act": (
        desc_act,
        method("gptq", bits=4, group_size=128, desc_act=True),
        "q4_0+bf16",
    ),
    "w4a16": (packed, compressed("pack-quantized", num_bits=4, group_size=128), "q4_0+bf16"),
    "w8a8": (int8, compressed("int-quantized", num_bits=8, strategy="channel"), "q8_0+bf16"),
    "llm-int8": (llm_int8, method("bitsandbytes", load_in_8bit=True), "q8_0+bf16"),
    "mlx-4": (mlx(4, 64), {"quantization": {"bits": 4, "group_size": 64}}, "q4_1"),
    "mlx-8": (mlx(8, 64), {"quantization": {"bits": 8, "group_size": 64}}, "q8_0"),
    "hqq-4": (hqq, method("hqq", quant_config={}), "q4_1+bf16"),
    "fp8-128": (fp8(128), method("fp8", weight_block_size=[128, 128]), "q8_0+bf16"),
    "fp8-channel": (
        fp8(0),
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        "q8_0+bf16",
    ),
    "nvfp4": (nvfp4, method("modelopt", quant_algo="NVFP4"), "q4_0+bf16"),
    "nf4": (nf4, method("bitsandbytes", load_in_4bit=True), "q4_1+bf16"),
    "mxfp8": (mxfp8, {"quantization": {"bits": 8, "group_size": 32, "mode": "mxfp8"}}, "q8_0"),
}
"""Format → its writer, what its config says, the GGUF file it is compared with."""


def write_folder(folder: Path, form: str) -> None:
    """Write one folder."""
    parts_of, said, _ = FORMATS[form]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": FF,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config | said))
    tensors: Tensors = {}

    def matrix(name: str, n: int, k: int, source: int) -> None:
        tensors.update({f"{name}.{part}": data for part, data in parts_of(n, k, source).items()})

    if "quantization" in said:  # MLX's
        matrix("model.embed_tokens", VOCAB, WIDTH, 0)
    else:
        tensors["model.embed_tokens.weight"] = bf16(VOCAB, WIDTH)
    tensors["model.norm.weight"] = np.ones(WIDTH, np.float32)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] = np.ones(WIDTH, np.float32)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{layer}.self_attn.{norm}.weight"] = np.ones(HEAD_DIM, np.float32)
        matrix(f"{layer}.self_attn.q_proj", HEADS * HEAD_DIM, WIDTH, 4 * i)
        matrix(f"{layer}.self_attn.k_proj", KV_HEADS * HEAD_DIM, WIDTH, 4 * i)
        matrix(f"{layer}.self_attn.v_proj", KV_HEADS * HEAD_DIM, WIDTH, 4 * i)
        matrix(f"{layer}.self_attn.o_proj", WIDTH, HEADS * HEAD_DIM, 4 * i + 1)
        matrix(f"{layer}.mlp.gate_proj", FF, WIDTH, 4 * i + 2)
        matrix(f"{layer}.mlp.up_proj", FF, WIDTH, 4 * i + 2)
        matrix(f"{layer}.mlp.down_proj", WIDTH, FF, 4 * i + 3)
    save(folder / "model.safetensors", tensors)


def bf16(*shape: int) -> np.ndarray:
    """Bit patterns of bfloat16: ``save`` takes uint16 for that."""
    values = RNG.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def save(path: Path, tensors: Tensors) -> None:
    """A safetensors file."""
    header: dict[str, Any] = {}
    at = 0
    for name, data in tensors.items():
        kind = "BF16" if data.dtype == np.uint16 else NAMES[data.dtype.str[1:]]
        spot = [at, at + data.nbytes]
        header[name] = {"dtype": kind, "shape": list(data.shape), "data_offsets": spot}
        at += data.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for data in tensors.values():
            file.write(np.ascontiguousarray(data).data)


def main() -> None:
    """Write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    args = parser.parse_args()
    for scheme in sorted({FORMATS[form][2] for form in args.formats}):
        path = args.out / f"{scheme}.gguf"
        write(path, scheme, args.vocabulary)
        print(path, path.stat().st_size)
    for form in args.formats:
        write_folder(args.out / form, form)
        print(args.out / form, (args.out / form / "model.safetensors").stat().st_size)


if __name__ == "__main__":
    main()
