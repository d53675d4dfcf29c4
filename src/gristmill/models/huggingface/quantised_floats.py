"""Quantised modules whose values are small floats: fp8, ModelOpt, MXFP4."""

from __future__ import annotations

import math
from typing import cast

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.huggingface.modules import UNUSED, Modules, matrix
from gristmill.models.huggingface.settings import Settings
from gristmill.types import RawTensor

FP8 = ("f8_e4m3", "f8_e5m2")


def fp8(modules: Modules, settings: Settings) -> None:
    """Matrices of eight-bit floats with ``weight_scale_inv`` or ``weight_scale``."""
    blocks = block_sizes(settings, "weight_block_size")
    for module in modules.having("weight"):
        if _is_fp8(modules, module):
            put_fp8(modules, module, blocks)


def _is_fp8(modules: Modules, module: str) -> bool:
    found = modules.see(module, "weight")
    return found is not None and found.encoding in FP8 and len(found.shape) == 2


def block_sizes(settings: Settings, key: str) -> tuple[int, int] | None:
    """A pair of block sizes under ``key``. Raises FormatError."""
    if not settings.has(key):
        return None
    values = settings.values[key]
    items = cast("list[object]", values) if isinstance(values, list) else []
    sizes = [Settings({key: item}, settings.where).integer(key) for item in items]
    if len(sizes) != 2 or min(sizes) < 1:
        raise FormatError(f"{settings.where}: {key!r} is {values!r:.60}; two sizes are allowed.")
    return sizes[0], sizes[1]


def put_fp8(modules: Modules, module: str, blocks: tuple[int, int] | None) -> None:
    """One matrix of eight-bit floats. What its scales' shape says goes before the config."""
    codes = modules.take(module, "weight")
    inverse = modules.see(module, "weight_scale_inv") is not None
    scales = modules.take(module, "weight_scale_inv" if inverse else "weight_scale")
    modules.drop(module, *UNUSED)
    rows, columns = _layout(codes, scales, blocks)
    sizes = {"block_rows": rows, "block_columns": columns}
    modules.put(module, "fp8", codes.shape, {"codes": codes, "scales": scales}, sizes)


def _layout(codes: RawTensor, scales: RawTensor, blocks: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns that share a scale; 0 is all."""
    n, k = matrix(codes)
    if blocks and scales.shape == (-(-n // blocks[0]), -(-k // blocks[1])):
        return blocks
    if scales.elements == 1:
        return 0, 0
    if scales.encoding in ("u8", "f8_e8m0"):
        return 1, 32  # mxfp8
    return (1, 0) if scales.shape[:1] == (n,) or not blocks else blocks


def modelopt(modules: Modules, settings: Settings) -> None:
    """NVIDIA's ModelOpt: ``quant_algo`` NVFP4, FP8, or both in one model."""
    inner = settings.section("quantization") if settings.has("quantization") else settings
    algorithm = inner.text("quant_algo", "")
    known = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION")
    if algorithm not in known:
        raise UnsupportedError(
            f"{inner.where}: quant_algo {algorithm!r:.60} is not read; read are {', '.join(known)}."
        )
    group = inner.integer("group_size", 16) if algorithm == "NVFP4" else 16
    if group != 16:
        raise UnsupportedError(f"{inner.where}: NVFP4 has groups of 16, not of {group}.")
    for module in modules.having("weight"):
        if modules.see(module, "pre_quant_scale") is not None:
            raise UnsupportedError(f"The module '{module}' has a pre_quant_scale; it is not read.")
        if _is_fp8(modules, module):
            put_fp8(modules, module, None)
        elif (found := modules.see(module, "weight")) is not None and found.encoding == "u8":
            put_nvfp4(modules, module)


def put_nvfp4(modules: Modules, module: str) -> None:
    """One matrix of ModelOpt's NVFP4."""
    codes = modules.take(module, "weight")
    n, half = matrix(codes)
    parts = {
        "codes": codes,
        "scales": modules.take(module, "weight_scale"),
        "global": modules.take(module, "weight_scale_2"),
    }
    modules.drop(module, *UNUSED)
    modules.put(module, "nvfp4_hf", (n, 2 * half), parts, {"divide": False})


def mxfp4(modules: Modules, settings: Settings) -> None:
    """gpt-oss: ``<name>_blocks`` and ``<name>_scales``, experts stacked by rows."""
    del settings
    for name in [name for name in modules.tensors if name.endswith("_blocks")]:
        codes = modules.tensors.pop(name)
        stem = name.removesuffix("_blocks")
        scales = modules.tensors.pop(f"{stem}_scales", None)
        if scales is None:
            raise FormatError(f"The quantised tensor '{name}' has no '{stem}_scales'.")
        if len(codes.shape) < 3:
            raise FormatError(f"Tensor '{name}' has the shape {list(codes.shape)}.")
        shape = (math.prod(codes.shape[:-2]), 32 * codes.shape[-2])
        modules.put(stem, "mxfp4_hf", shape, {"codes": codes, "scales": scales}, {})
