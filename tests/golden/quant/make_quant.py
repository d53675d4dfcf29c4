"""Makes the vectors here: small modules as each format's own library writes and decodes them.

    python make_quant.py SOURCES

in an environment with torch, numpy, transformers, compressed-tensors, bitsandbytes, hqq and
mlx[cpu]; SOURCES is a folder with the unpacked source packages ``auto_gptq`` (0.7.1), ``autoawq``
(0.2.9) and ``exllamav3`` (1.6.5), of which single files are loaded: their kernels are not needed.

Each ``<family>.npz`` (all, or those named after SOURCES) holds ``meta`` (JSON: versions; for each
case the config, the tensors' types and shapes, and how exact the library's arithmetic is) and
the bytes of each tensor. ``want`` is what the library decodes the matrix to. Random words are
valid codes in AWQ, GPTQ and EXL3, so these modules are not packed but made up.

Where no library decodes on a CPU: AWQ gemv is packed by AutoAWQ and decoded by its formula;
ModelOpt's NVFP4 is decoded by compressed-tensors' unpacking and two multiplications in torch;
``weight_scale_inv`` by torch's own float8 types. EXL3's trellis is only decoded by a CUDA kernel:
``exl3_inner`` below follows that kernel bit by bit, and takes the mul1 codebook from the library.
"""

# What makes the vectors is installed nowhere else.
# pyright: reportMissingImports=false, reportArgumentType=false

from __future__ import annotations

import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.uint32: "u32",
    torch.float8_e4m3fn: "f8_e4m3",
    torch.float8_e8m0fnu: "f8_e8m0",
}


class Family:
    """Collects cases and writes them."""

    def __init__(self, name: str, *packages: str) -> None:
        self.name = name
        self.arrays: dict[str, np.ndarray] = {}
        self.cases: list[dict[str, Any]] = []
        self.versions = {p: version(p) for p in ("torch", *packages)}

    def add(
        self, name: str, config: dict[str, Any], tensors: dict[str, Any], want: Any, ulps: float
    ) -> None:
        """``tensors`` of a module called "m"; ``ulps``: of ``want``'s own type, at each value, or
        (where the format adds, and sums cancel) at the largest of the row if it is negative."""
        meta: dict[str, list[Any]] = {}
        # Some rows are enough; the step is prime to the sizes of words and tiles.
        step = 1 if want.shape[0] <= 16 else 7 if want.shape[0] < 100 else 19
        want = want[::step]
        for key, given in {**tensors, "want": want}.items():
            tensor = given.detach().contiguous().cpu()
            meta[key] = [DTYPES[tensor.dtype], list(tensor.shape)]
            raw = tensor.reshape(-1).view(torch.uint8).numpy().copy()
            self.arrays[f"{name}|{key}"] = raw
        self.cases.append(
            {"name": name, "config": config, "tensors": meta, "step": step, "ulps": ulps}
        )

    def save(self) -> None:
        meta = json.dumps({"versions": self.versions, "cases": self.cases})
        path = HERE / f"{self.name}.npz"
        np.savez_compressed(path, meta=np.frombuffer(meta.encode(), np.uint8), **self.arrays)
        print(path.name, len(self.cases), path.stat().st_size)


def load(path: Path, name: str) -> Any:
    """A single file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), 1 << 31, shape, dtype=torch.int64).to(torch.int32)


def scales(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return (torch.rand(shape) * 0.02 + 0.001).to(dtype)


def fp8() -> None:
    family = Family("fp8")
    for name, (n, k), grid, dtype, config in (
        ("block-f32", (140, 260), (2, 3), torch.float32, {"weight_block_size": [128, 128]}),
        ("block-bf16", (8, 256), (1, 2), torch.bfloat16, {"weight_block_size": [128, 128]}),
        ("block-e8m0", (130, 128), (2, 1), torch.float8_e8m0fnu, {"weight_block_size": [128, 128]}),
        ("tensor", (24, 40), (), torch.float32, {}),
        ("channel", (24, 40), (24, 1), torch.float32, {}),
        ("channel-bf16-flat", (24, 40), (24,), torch.bfloat16, {}),
    ):
        weight = torch.randn(n, k).mul(30).to(torch.float8_e4m3fn)
        if dtype is torch.float8_e8m0fnu:
            scale = torch.randint(110, 125, grid, dtype=torch.uint8).view(dtype)
        else:
            scale = scales(*grid, dtype=dtype)
        full = scale.float()
        if (len(grid) == 2 and grid[1] != 1) or name == "block-e8m0":
            full = full.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        elif len(grid) == 1:
            full = full[:, None]
        key = "weight_scale_inv" if "block" in name else "weight_scale"
        family.add(
            name,
            {"quant_method": "fp8", **config},
            {"weight": weight, key: scale, "input_scale": torch.tensor(0.5)},
            weight.float() * full,
            0,
        )
    family.save()


def awq(sources: Path) -> None:
    torch.manual_seed(1)
    family = Family("awq")
    base = next(sources.glob("autoawq-*"))
    utils = load(base / "awq/utils/packing_utils.py", "awq_packing")
    family.versions["autoawq"] = base.name.removeprefix("autoawq-")
    for group, (n, k) in ((32, (24, 64)), (128, (40, 256)), (-1, (16, 48))):
        size = k if group == -1 else group
        q, z, s = words(k, n // 8), words(k // size, n // 8), scales(k // size, n)
        want = utils.dequantize_gemm(q, z, s, 4, size).T
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
        family.add(f"gemm-{group}", config, {"qweight": q, "qzeros": z, "scales": s}, want, 0.5)
    for name, path in (("awq", "awq"), ("awq.utils", "awq/utils")):
        stub = types.ModuleType(name)
        stub.__path__ = [str(base / path)]
        sys.modules[name] = stub
    gemv = load(base / "awq/modules/linear/gemv.py", "awq_gemv").WQLinear_GEMV
    for group, (n, k) in ((32, (8, 160)), (64, (8, 192)), (128, (16, 384))):
        code = torch.randint(0, 16, (n, k))
        zero = torch.randint(0, 16, (n, k // group))
        s = scales(n, k // group)
        want = (code - zero.repeat_interleave(group, 1)) * s.float().repeat_interleave(group, 1)
        linear = torch.nn.Linear(k, n, bias=False)
        linear.weight.data = want
        made = gemv.from_linear(linear, 4, group, scales=s, zeros=zero)
        tensors = {name: getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemv"}
        family.add(f"gemv-{group}", config, tensors, want, 0)
    family.save()


def gptq(sources: Path) -> None:
    torch.manual_seed(2)
    family = Family("gptq")
    base = sources / "auto_gptq"
    family.versions["auto_gptq"] = "0.7.1"
    linear = load(base / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", "qlinear").QuantLinear
    for bits in (2, 3, 4, 8):
        for group, order in ((32, False), (32, True), (-1, False)):
            n, k = 32, 96
            size = k if group == -1 else group
            made = linear(bits, group, k, n, bias=False, kernel_switch_threshold=0)
            made.autogptq_cuda_available = False
            made.qweight, made.scales = words(k * bits // 32, n), scales(k // size, n)
            # Zeros below 2^bits − 1: what is stored one lower does not run over.
            zero = torch.randint(0, (1 << bits) - 1, (k // size, n)).numpy()
            made.qzeros = torch.from_numpy(packed(zero, bits))
            if order:
                made.g_idx = torch.arange(k)[torch.randperm(k)].div(size, rounding_mode="floor")
                made.g_idx = made.g_idx.to(torch.int32)
            want = made(torch.eye(k, dtype=torch.float16)).T
            tensors = {p: getattr(made, p) for p in ("qweight", "qzeros", "scales", "g_idx")}
            config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order}
            name = f"v1-{bits}-{group}{'-order' if order else ''}"
            family.add(name, config, tensors, want, 0.5)
            if order or bits == 3:
                second = {**tensors, "qzeros": torch.from_numpy(packed(zero + 1, bits))}
                config = {**config, "checkpoint_format": "gptq_v2"}
                family.add(name.replace("v1", "v2"), config, second, want, 0.5)
    family.save()


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """(rows, n) codes into (rows, n·bits/32) words, lowest bits first, running on."""
    rows, n = codes.shape
    out = np.zeros((rows, n * bits // 32), np.uint32)
    for r in range(rows):
        value = sum(int(c) << (bits * i) for i, c in enumerate(codes[r]))
        for w in range(out.shape[1]):
            out[r, w] = (value >> (32 * w)) & 0xFFFFFFFF
    return out.view(np.int32)


def compressed() -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    torch.manual_seed(3)
    family = Family("compressed", "compressed-tensors")

    def case(
        name: str, form: str, args: dict[str, Any], state: dict[str, Any], ulps: float
    ) -> None:
        weights = QuantizationArgs(**args)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        compressor = BaseCompressor.get_value_from_registry(form)
        made = compressor.compress(state, scheme)
        want = compressor.decompress(made, scheme)["weight"]
        config = {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
            "ignore": ["lm_head"],
        }
        family.add(name, config, made, want, ulps)

    for bits in (2, 3, 4, 8):
        for group, symmetric in ((32, True), (32, False), (None, True), (None, False)):
            n, k = 40, 96
            count = k // group if group else 1
            top = (1 << (bits - 1)) - 1
            weight = torch.randn(n, k)
            scale = weight.reshape(n, count, -1).abs().amax(-1) / (top + 0.5)
            state = {"weight": weight, "weight_scale": scale}
            if not symmetric:
                zero = torch.randint(-top - 1, top + 1, (n, count), dtype=torch.int8)
                state["weight_zero_point"] = zero
            args = {
                "num_bits": bits,
                "type": "int",
                "symmetric": symmetric,
                "strategy": "group" if group else "channel",
                "group_size": group,
            }
            name = f"pack-{bits}-{group or 'channel'}-{'sym' if symmetric else 'asym'}"
            case(name, "pack-quantized", args, state, 1)
    weight = torch.randn(24, 70)
    channel = weight.abs().amax(1, keepdim=True)
    for strategy, scale in (("channel", channel / 127), ("tensor", channel.max()[None] / 127)):
        for dtype in (torch.float32, torch.bfloat16):
            args = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy}
            state = {"weight": weight.to(dtype), "weight_scale": scale.to(dtype)}
            case(f"int8-{strategy}-{DTYPES[dtype]}", "int-quantized", args, state, 1)
    for strategy, scale in (("channel", channel / 448), ("tensor", channel.max()[None] / 448)):
        args = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
        state = {"weight": weight, "weight_scale": scale}
        case(f"float-{strategy}", "float-quantized", args, state, 1)
    args = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "block",
        "block_structure": [16, 32],
    }
    state = {"weight": torch.randn(32, 96) / 9, "weight_scale": scales(2, 3, dtype=torch.float32)}
    case("float-block", "float-quantized", args, state, 1)
    fp4 = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16}
    n, k = 8, 64
    weight = torch.randn(n, k)
    scale = (weight.reshape(n, -1, 16).abs().amax(-1) / 6 * 200).to(torch.float8_e4m3fn).float()
    state = {
        "weight": weight,
        "weight_scale": scale,
        "weight_global_scale": torch.tensor([200.0]),
    }
    case("nvfp4", "nvfp4-pack-quantized", {**fp4, "strategy": "tensor_group"}, state, 1)
    state = {
        "weight": weight,
        "weight_scale": torch.exp2(torch.randint(-4, 1, (n, k // 32)).float()),
    }
    args = {**fp4, "strategy": "group", "group_size": 32}
    case("mxfp4", "mxfp4-pack-quantized", args, state, 0)
    family.save()


def mlx() -> None:
    import mlx.core as mx

    torch.manual_seed(4)
    family = Family("mlx", "mlx")
    types_ = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}

    def back(array: Any) -> torch.Tensor:
        if array.dtype in types_:
            return torch.from_numpy(np.array(array.astype(mx.float32))).to(types_[array.dtype])
        return torch.from_numpy(np.array(array))

    kinds = (mx.float32, mx.float16, mx.bfloat16)
    for i, (bits, group) in enumerate((b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)):
        w = mx.array(torch.randn(4, 256).numpy()).astype(kinds[i % 3])
        q, s, b = mx.quantize(w, group_size=group, bits=bits)
        want = mx.dequantize(q, s, b, group_size=group, bits=bits)
        tensors = {"weight": back(q), "scales": back(s), "biases": back(b)}
        config = {"group_size": group, "bits": bits}
        family.add(f"affine-{bits}-{group}", {"quantization": config}, tensors, back(want), -1)
    for mode, group, bits in (("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)):
        w = mx.array(torch.randn(4, 128).numpy()).astype(mx.bfloat16)
        q, s = mx.quantize(w, mode=mode)
        want = mx.dequantize(q, s, mode=mode)
        config = {"quantization": {"group_size": group, "bits": bits, "mode": mode}}
        family.add(mode, config, {"weight": back(q), "scales": back(s)}, back(want), 1)
    q, s, b = mx.quantize(mx.array(torch.randn(4, 128).numpy()), group_size=32, bits=6)
    want = mx.dequantize(q, s, b, group_size=32, bits=6)
    config = {"quantization": {"group_size": 64, "bits": 4, "m": {"group_size": 32, "bits": 6}}}
    tensors = {"weight": back(q), "scales": back(s), "biases": back(b)}
    family.add("override", config, tensors, back(want), -1)
    family.save()


def bitsandbytes() -> None:
    import bitsandbytes.functional as bnb
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as plain

    torch.manual_seed(5)
    family = Family("bitsandbytes", "bitsandbytes")
    config = {"quant_method": "bitsandbytes"}
    for kind in ("nf4", "fp4"):
        for double in (False, True):
            for n, k, size in ((9, 64, 64), (40, 96, 128)) if double else ((9, 71, 64),):
                w = torch.randn(n, k)
                q, state = bnb.quantize_4bit(
                    w, blocksize=size, compress_statistics=double, quant_type=kind
                )
                tensors = {"weight": q}
                for key, value in state.as_dict(packed=True).items():
                    tensors[f"weight.{key}"] = value
                absmax = state.absmax
                if double:
                    absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
                # Its AVX-512 kernel errs where a block runs on into the next row.
                want = plain(q.reshape(-1), absmax, state.code, size, (n, k), torch.float32)
                name = f"{kind}{'-double' if double else ''}-{size}"
                family.add(name, {**config, "load_in_4bit": True}, tensors, want, 1)
    w = torch.randn(24, 70).half()
    q, scb, _ = bnb.int8_vectorwise_quant(w)
    want = bnb.int8_vectorwise_dequant(q, scb)
    tensors = {"weight": q, "SCB": scb, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    family.add("int8", {**config, "load_in_8bit": True}, tensors, want, 2)
    family.save()


def fp4() -> None:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(6)
    family = Family("fp4", "compressed-tensors", "transformers")
    n, k = 24, 96
    q = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    s = torch.rand(n, k // 16).mul(300).to(torch.float8_e4m3fn)
    s2 = torch.tensor(0.0123)
    codes = unpack_fp4_from_uint8(q, n, k, torch.float32)
    want = codes * (s.float() * s2).repeat_interleave(16, 1)
    tensors = {"weight": q, "weight_scale": s, "weight_scale_2": s2, "input_scale": s2}
    family.add("modelopt", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, tensors, want, 0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8)
    exponents = torch.randint(112, 140, (3, 10, 2), dtype=torch.uint8)
    want = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)
    want = want.transpose(1, 2).reshape(30, 64)  # it gives [E, K, rows]
    tensors = {"_blocks": blocks, "_scales": exponents}
    family.add("gpt-oss", {"quant_method": "mxfp4"}, tensors, want, 0)
    family.save()


def hqq() -> None:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    family = Family("hqq", "hqq")
    for bits in (8, 4, 3, 2, 1):
        for axis in (0, 1):
            for dtype in (torch.float32, torch.float16):
                if dtype is torch.float16 and bits != 4:
                    continue
                torch.manual_seed(7)
                linear = torch.nn.Linear(64, 48, bias=False)
                config = BaseQuantizeConfig(nbits=bits, group_size=32, axis=axis)
                made = HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
                want = made.dequantize()
                tensors = {k: v for k, v in made.state_dict().items() if v is not None}
                # In half precision it rounds the difference, and the product again.
                exact = 0 if dtype is torch.float32 else 8
                name = f"{bits}-axis{axis}-{DTYPES[dtype]}"
                family.add(name, {"quant_method": "hqq"}, tensors, want, exact)
    family.save()


def exl3_inner(trellis: np.ndarray, codebook: list[float]) -> np.ndarray:
    """Wq (K, N), tile by tile, lane by lane, as the kernel ``reconstruct`` goes."""
    tiles_k, tiles_n, width = trellis.shape
    bits = width // 16
    out = np.zeros((16 * tiles_k, 16 * tiles_n), np.float32)
    for a in range(tiles_k):
        for b in range(tiles_n):
            half = trellis[a, b].view(np.uint16).astype(int)
            ring = [half[2 * i] | half[2 * i + 1] << 16 for i in range(8 * bits)]
            for lane in range(32):
                for i in range(8):
                    end = (lane * 8 + i + 257) * bits  # the window's end, one ring further on
                    first, last = (end - 16) // 32, (end - 1) // 32
                    pair = ring[first % len(ring)] << 32 | ring[last % len(ring)]
                    state = pair >> ((last + 1) * 32 - end) & 0xFFFF
                    # fragment i of a lane: rows 2(lane mod 4) + 0, 1, 8, 9; columns lane/4, + 8
                    row = lane % 4 * 2 + (0, 1, 8, 9)[i % 4]
                    column = lane // 4 + (8 if i >= 4 else 0)
                    out[16 * a + row, 16 * b + column] = codebook[state]
    return out


def exl3_codebook(kind: str, sources: Path) -> list[float]:
    if kind == "mul1":
        path = sources / "exllamav3/exllamav3/modules/quant/exl3_lib/ngram_codec.py"
        return load(path, "ngram_codec").mul1_codebook("cpu").float().tolist()
    out: list[float] = []
    for state in range(1 << 16):
        x = state * 89226354 + 64248484 if kind == "default" else state * 0xCBAC1FED
        x = (x & 0x8FFF8FFF) ^ 0x3B603B60
        low, high = np.array([x & 0xFFFF, x >> 16], np.uint16).view(np.float16)
        out.append(float(low + high))  # numpy adds halves as the kernel does: rounded once
    return out


def exl3(sources: Path) -> None:
    torch.manual_seed(8)
    family = Family("exl3")
    family.versions["exllamav3"] = "1.6.5"
    h = torch.ones(1, 1)
    while len(h) < 128:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    h = h.double() / 128**0.5
    books = {kind: exl3_codebook(kind, sources) for kind in ("default", "mcg", "mul1")}
    markers = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
    for i in range(8):
        kind = ("default", "mcg", "mul1")[i % 3]
        n, k = (256, 128) if i == 3 else (128, 128)
        trellis = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, 16 * (i + 1)))
        trellis = trellis.to(torch.int16)
        inner = torch.from_numpy(exl3_inner(trellis.numpy(), books[kind])).double()
        tensors: dict[str, torch.Tensor] = {"trellis": trellis}
        signs: list[torch.Tensor] = []
        for role, size in (("u", k), ("v", n)):
            if i == 3:  # the old form: signs alone, a bit for each
                minus = torch.randint(0, 2, (size,))
                word = (minus.reshape(-1, 16) << torch.arange(16)).sum(1)
                tensors[f"s{role}"] = word.to(torch.int32).to(torch.int16)
                signs.append(1.0 - 2.0 * minus.double())
            else:
                tensors[f"s{role}h"] = torch.randn(size).half()
                signs.append(tensors[f"s{role}h"].double())
        if kind in markers:
            tensors[kind] = torch.tensor(markers[kind], dtype=torch.uint32).view(torch.int32)
        w = (h @ inner.reshape(-1, 128, n)).reshape(k, n) * signs[0][:, None]
        w = (w.reshape(k, -1, 128) @ h).reshape(k, n) * signs[1]
        family.add(f"{i + 1}-{kind}", {"quant_method": "exl3"}, tensors, w.T.float(), -16)
    family.save()


if __name__ == "__main__":
    found = Path(sys.argv[1])
    every = ("fp8", "awq", "gptq", "compressed", "mlx", "bitsandbytes", "fp4", "hqq", "exl3")
    for name in sys.argv[2:] or every:
        maker = globals()[name]
        maker(found) if name in ("awq", "gptq", "exl3") else maker()
