"""Random composites of every family that has a native layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gristmill.types import RawTensor

Rng = np.random.Generator
_EMPTY = memoryview(b"")


def part(encoding: str, array: npt.NDArray[np.generic]) -> RawTensor:
    """One of the tensors that a composite consists of."""
    data = np.ascontiguousarray(array)
    return RawTensor("part", encoding, data.shape, memoryview(data.tobytes()))


def numbers(encoding: str, values: npt.NDArray[np.float64]) -> RawTensor:
    """Numbers rounded to f16, bf16 or f32."""
    if encoding == "bf16":
        bits = values.astype(np.float32).view(np.uint32) >> 16
        return part("bf16", bits.astype(np.uint16))
    return part(encoding, values.astype(np.float16 if encoding == "f16" else np.float32))


def _words(rng: Rng, *shape: int) -> npt.NDArray[np.uint32]:
    return rng.integers(0, 1 << 32, shape, dtype=np.uint32)


def _scales(rng: Rng, *shape: int) -> npt.NDArray[np.float64]:
    return rng.uniform(0.001, 0.02, shape) * rng.choice([-1, 1], shape)


def gptq(n: int, k: int, rng: Rng, bits: int, group: int, form: str = "") -> RawTensor:
    """``form``: "sym" (all zeros are half the range), "order" (desc_act), "one" (zero − 1)."""
    groups = -(-k // group)
    zeros = _words(rng, groups, n * bits // 32)
    if form == "sym":
        zeros[:] = {2: 0xAAAAAAAA, 4: 0x88888888, 8: 0x80808080}[bits]
    parts = {
        "codes": part("i32", _words(rng, k * bits // 32, n)),
        "zeros": part("i32", zeros),
        "scales": numbers("f16", _scales(rng, groups, n)),
    }
    if form == "order":
        parts["g_idx"] = part("i32", (rng.permutation(k) // group).astype(np.int32))
    settings = {"bits": bits, "group": group, "zero_plus_one": form == "one"}
    return RawTensor("w", "gptq", (n, k), _EMPTY, parts, settings)


def awq(n: int, k: int, rng: Rng, group: int) -> RawTensor:
    """AWQ as its gemm version stores it."""
    parts = {
        "codes": part("i32", _words(rng, k, n // 8)),
        "zeros": part("i32", _words(rng, k // group, n // 8)),
        "scales": numbers("f16", _scales(rng, k // group, n)),
    }
    return RawTensor("w", "awq_gemm", (n, k), _EMPTY, parts, {"group": group})


def packed(n: int, k: int, rng: Rng, bits: int, group: int, zeros: bool, kind: str) -> RawTensor:
    """compressed-tensors, pack-quantized, with scales of a kind."""
    groups = -(-k // group)
    parts = {
        "codes": part("i32", _words(rng, n, -(-k * bits // 32))),
        "scales": numbers(kind, _scales(rng, n, groups)),
    }
    if zeros:
        parts["zeros"] = part("i32", _words(rng, -(-n * bits // 32), groups))
    return RawTensor("w", "ct_pack", (n, k), _EMPTY, parts, {"bits": bits, "group": group})


def int8(n: int, k: int, rng: Rng, group: int, zeros: bool = False) -> RawTensor:
    """compressed-tensors, int-quantized: W8A8's weights where ``group`` is k."""
    shape = (n, -(-k // group))
    parts = {
        "codes": part("i8", rng.integers(-128, 128, (n, k)).astype(np.int8)),
        "scales": numbers("bf16", _scales(rng, *shape)),
    }
    if zeros:
        parts["zeros"] = part("i8", rng.integers(-128, 128, shape).astype(np.int8))
    return RawTensor("w", "ct_int8", (n, k), _EMPTY, parts, {"group": group})


def bnb(n: int, k: int, rng: Rng) -> RawTensor:
    """bitsandbytes, LLM.int8."""
    parts = {
        "codes": part("i8", rng.integers(-128, 128, (n, k)).astype(np.int8)),
        "scales": numbers("f32", rng.uniform(0.1, 3, n)),
    }
    return RawTensor("w", "bnb_int8", (n, k), _EMPTY, parts, {})


def mlx(n: int, k: int, rng: Rng, bits: int, group: int, kind: str = "bf16") -> RawTensor:
    """MLX, mode affine."""
    parts = {
        "codes": part("u32", _words(rng, n, k * bits // 32)),
        "scales": numbers(kind, _scales(rng, n, k // group)),
        "lows": numbers(kind, rng.uniform(-0.1, 0.1, (n, k // group))),
    }
    return RawTensor("w", "mlx", (n, k), _EMPTY, parts, {"bits": bits, "group": group})


def hqq(n: int, k: int, rng: Rng, bits: int, group: int, axis: int = 1) -> RawTensor:
    """HQQ with zeros that are no whole numbers."""
    rows, columns = n * k // group, group
    if axis == 0:
        rows, columns = columns, rows
    per = 10 if bits == 3 else 8 // bits
    codes = rng.integers(0, 1 << (30 if bits == 3 else 8), (-(-rows // per), columns))
    one = (rows, 1) if axis else (1, columns)
    parts = {
        "codes": part(*(("i32", codes.astype("<i4")) if bits == 3 else ("u8", codes.astype("u1")))),
        "scales": numbers("f16", _scales(rng, *one)),
        "zeros": numbers("f16", rng.uniform(0, 1 << bits, one)),
    }
    settings = {"bits": bits, "group": group, "axis": axis}
    return RawTensor("w", "hqq", (n, k), _EMPTY, parts, settings)


def mxfp4(n: int, k: int, rng: Rng, low: int = 118, high: int = 130) -> RawTensor:
    """MXFP4 as folders have it; ``low`` and ``high`` bound the exponents."""
    parts = {
        "codes": part("u8", rng.integers(0, 256, (n, k // 2), np.uint8)),
        "scales": part("u8", rng.integers(low, high, (n, k // 32), np.uint8)),
    }
    return RawTensor("w", "mxfp4_hf", (n, k), _EMPTY, parts, {})


def nvfp4(n: int, k: int, rng: Rng, factor: float | None = 3e-4, divide: bool = False) -> RawTensor:
    """NVFP4; no factor, as MLX has it; divided by it, as compressed-tensors has it."""
    scales = rng.integers(1, 0x7F, (n, k // 16), np.uint8)
    parts = {
        "codes": part("u8", rng.integers(0, 256, (n, k // 2), np.uint8)),
        "scales": part("u8" if factor is None else "f8_e4m3", scales),
    }
    if factor is not None:
        parts["global"] = part("f32", np.array([factor], np.float32))
    return RawTensor("w", "nvfp4_hf", (n, k), _EMPTY, parts, {"divide": divide})


def four_bits(n: int, k: int, rng: Rng, size: int, nested: bool = False) -> RawTensor:
    """bitsandbytes' four bits, in blocks of ``size``, with some table."""
    blocks = -(-n * k // size)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    table[0], table[7], table[15] = -1, 0, 1
    parts = {
        "codes": part("u8", rng.integers(0, 256, -(-n * k // 2), np.uint8)),
        "table": part("f32", table),
    }
    settings: dict[str, int | float | str | bool] = {"blocksize": size}
    if nested:
        parts["absmax"] = part("u8", rng.integers(0, 256, blocks, np.uint8))
        parts["nested_absmax"] = numbers("f32", rng.uniform(0.01, 0.02, -(-blocks // 256)))
        parts["nested_table"] = numbers("f32", rng.uniform(-1, 1, 256))
        settings |= {"nested_blocksize": 256, "nested_offset": 0.05}
    else:
        parts["absmax"] = numbers("f32", rng.uniform(0.01, 0.1, blocks))
    return RawTensor("w", "bnb_nf4", (n, k), _EMPTY, parts, settings)


def fp8(
    n: int, k: int, rng: Rng, block: tuple[int, int], scales: str = "f32", form: str = "f8_e4m3"
) -> RawTensor:
    """Eight-bit floats, finite; block sizes of 0 are the whole matrix. u32: as MLX has them."""
    codes = rng.integers(0, 256, (n, k), np.uint8)
    last = 0x7B if form == "f8_e5m2" else 0x7E
    codes = np.where(codes & 0x7F > last, codes - np.uint8(8), codes)
    grid = -(-n // (block[0] or n)), -(-k // (block[1] or k))
    powers = part("u8", rng.integers(118, 130, grid, np.uint8))
    parts = {
        "codes": part(form, codes.view(np.uint32) if form == "u32" else codes),
        "scales": powers if scales == "u8" else numbers(scales, _scales(rng, *grid)),
    }
    settings = {"block_rows": block[0], "block_columns": block[1]}
    return RawTensor("w", "fp8", (n, k), _EMPTY, parts, settings)


Maker = Callable[[Rng], RawTensor]

NATIVE: dict[str, Maker] = {
    "gptq, 4 bits, symmetric": lambda r: gptq(48, 256, r, 4, 128, "sym"),
    "gptq, 4 bits, desc_act": lambda r: gptq(40, 256, r, 4, 32, "order"),
    "gptq, 3 bits, all of K": lambda r: gptq(32, 160, r, 3, 160),
    "gptq, 2 bits, a last group cut": lambda r: gptq(16, 160, r, 2, 64, "one"),
    "gptq, 8 bits, zeros up to 256": lambda r: gptq(20, 96, r, 8, 32, "one"),
    "awq": lambda r: awq(56, 384, r, 128),
    "packed, 4 bits": lambda r: packed(37, 192, r, 4, 64, False, "bf16"),
    "packed, 4 bits, zeros": lambda r: packed(21, 192, r, 4, 32, True, "f16"),
    "packed, 8 bits, f32 scales": lambda r: packed(17, 64, r, 8, 64, True, "f32"),
    "packed, 6 bits": lambda r: packed(9, 96, r, 6, 32, False, "bf16"),
    "packed, 1 bit": lambda r: packed(5, 64, r, 1, 32, False, "bf16"),
    "packed, 7 bits": lambda r: packed(5, 64, r, 7, 32, True, "bf16"),
    "int8 by channel": lambda r: int8(33, 224, r, 224),
    "int8 by group, zeros": lambda r: int8(33, 128, r, 64, True),
    "bnb int8": lambda r: bnb(19, 352, r),
    **{f"mlx, {b} bits": (lambda r, b=b: mlx(35, 192, r, b, 64)) for b in (2, 3, 4, 5, 6, 8)},
    "mlx, 4 bits, groups of 32, f16": lambda r: mlx(16, 96, r, 4, 32, "f16"),
    **{f"hqq, {b} bits": (lambda r, b=b: hqq(24, 128, r, b, 64)) for b in (1, 2, 3, 4, 8)},
}
"""One of each kind that has a native layout."""

CODEBOOKS: dict[str, Maker] = {
    "mxfp4": lambda r: mxfp4(37, 224, r),
    "mxfp4, the least scales": lambda r: mxfp4(16, 64, r, 0, 3),
    "fp8, a scale for all": lambda r: fp8(37, 96, r, (0, 0)),
    "fp8, by channel": lambda r: fp8(21, 160, r, (1, 0), "bf16"),
    "fp8, blocks": lambda r: fp8(72, 352, r, (32, 128)),
    "fp8, blocks of f16 scales": lambda r: fp8(33, 64, r, (16, 32), "f16"),
    "fp8, e5m2": lambda r: fp8(33, 96, r, (1, 0), "f32", "f8_e5m2"),
    "nvfp4": lambda r: nvfp4(37, 224, r),
    "nvfp4, without a factor": lambda r: nvfp4(16, 64, r, None),
    "nvfp4, divided": lambda r: nvfp4(21, 96, r, 2688.0, True),
    "nf4": lambda r: four_bits(37, 192, r, 64),
    "nf4, double": lambda r: four_bits(20, 128, r, 64, True),
    "nf4, blocks of several rows": lambda r: four_bits(40, 64, r, 256),
    "mxfp8": lambda r: fp8(19, 224, r, (1, 32), "u8", "u32"),
}
"""One of each kind of codes that stand for values of a table, or are floats."""

DECODED: dict[str, Maker] = {
    "gptq, groups of 16": lambda r: gptq(32, 64, r, 4, 16),
    "packed, K odd": lambda r: packed(7, 45, r, 4, 15, True, "f16"),
    "packed, groups of 48": lambda r: packed(7, 96, r, 4, 48, False, "f16"),
    "nvfp4, K of half a block": lambda r: nvfp4(7, 48, r),
    "nf4, blocks that go on in the next row": lambda r: four_bits(7, 96, r, 64),
    "fp8, blocks of 48": lambda r: fp8(7, 96, r, (1, 48)),
    "fp8, K odd": lambda r: fp8(7, 45, r, (0, 0)),
    "hqq by columns": lambda r: hqq(24, 64, r, 4, 32, axis=0),
}
"""Codes that have none: they become floats."""
