"""Eight-bit floats with scales beside them: "fp8".

What writes it: ``transformers`` and DeepSeek (``weight_scale_inv``, blocks of 128 × 128), vLLM,
ModelOpt, FBGEMM and compressed-tensors' float-quantized (``weight_scale``, one for all or for
each row), and the mxfp8 of MLX and compressed-tensors (e8m0 for 32 weights). w = code·scale, a
multiplication in each of them, in spite of the name ``weight_scale_inv``.

parts: codes f8_e4m3 or f8_e5m2 (N, K), or u32 (N, K/4) with the first code in the lowest byte
(MLX); scales (⌈N / block_rows⌉, ⌈K / block_columns⌉), or one for all.
settings: block_rows, block_columns; 0 is the whole matrix.
"""

from __future__ import annotations

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    FLOATS,
    Codes,
    Composite,
    Number,
    finite,
    floats,
    part,
    scale_type,
    setting,
)
from gristmill.quant.encoding import F32, U8
from gristmill.quant.floats import E4M3, E5M2
from gristmill.types import RawTensor

_MOST = 1 << 31
_POWERS = ("u8", "f8_e8m0")
_NONE: dict[Number, int] = {"e4m3": 0x7F, "e5m2": 0x7C}
"""The first magnitude that is infinite or NaN."""


def _blocks(tensor: RawTensor) -> tuple[int, int]:
    n, k = tensor.shape
    return (
        setting(tensor, "block_rows", 0, _MOST) or n,
        setting(tensor, "block_columns", 0, _MOST) or k,
    )


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    codes, scales = part(tensor, "codes"), part(tensor, "scales")
    if (codes.encoding, codes.shape) not in (
        ("f8_e4m3", (n, k)),
        ("f8_e5m2", (n, k)),
        ("u32", (n, k // 4) if k % 4 == 0 else ()),
    ):
        raise FormatError(
            f"Tensor '{tensor.name}' in fp8: its codes are {codes.encoding} of shape "
            f"{list(codes.shape)}; f8_e4m3 or f8_e5m2 of shape {[n, k]} are wanted."
        )
    rows, columns = _blocks(tensor)
    grid = (-(-n // rows), -(-k // columns))
    shapes = {grid, grid[:1]} if grid[1] == 1 else {grid}
    if grid == (1, 1):
        shapes |= {(), (1,)}
    if scales.shape not in shapes or scales.encoding not in (*FLOATS, "f8_e8m0", "u8"):
        raise FormatError(
            f"Tensor '{tensor.name}' in fp8: its scales are {scales.encoding} of shape "
            f"{list(scales.shape)}; numbers of shape {list(grid)} are wanted."
        )


def _values(tensor: RawTensor, start: int, stop: int) -> F32:
    k = tensor.shape[1]
    codes, scales = part(tensor, "codes"), _scales(tensor, start, stop)
    out = (E5M2 if codes.encoding == "f8_e5m2" else E4M3)[_raw(tensor, start, stop)]
    out *= scales[:, np.arange(k) // _blocks(tensor)[1]]
    return out


def _raw(tensor: RawTensor, start: int, stop: int) -> U8:
    return np.frombuffer(part(tensor, "codes").data, np.uint8).reshape(tensor.shape)[start:stop]


def _scales(tensor: RawTensor, start: int, stop: int) -> F32:
    """Of rows [start, stop), by groups of columns."""
    (n, k), scales = tensor.shape, part(tensor, "scales")
    rows, columns = _blocks(tensor)
    scale = exponents(scales) if scales.encoding in _POWERS else floats(scales)
    grid = finite(tensor, "scales", scale.reshape(-(-n // rows), -(-k // columns)))
    return grid[np.arange(start, stop) // rows]


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    raw = _raw(tensor, start, stop)
    number: Number = "e5m2" if part(tensor, "codes").encoding == "f8_e5m2" else "e4m3"
    if ((raw & 0x7F) >= _NONE[number]).any():
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding} has codes that are no numbers."
        )
    stored = part(tensor, "scales").encoding
    powers = stored in _POWERS  # which bfloat16 holds, the smallest too
    return Codes(
        raw,
        bits=8,
        group=_blocks(tensor)[1],
        scale=_scales(tensor, start, stop),
        scale_type="bf16" if powers else scale_type(part(tensor, "scales")),
        number=number,
    )


def exponents(found: RawTensor) -> F32:
    """Powers of two, e8m0 in u8 or f8_e8m0, as float32 of the part's shape; 255 is NaN."""
    code = np.frombuffer(found.data, np.uint8).reshape(found.shape).astype(np.uint32)
    bits = np.where(code == 0, np.uint32(0x00400000), code << 23)
    return np.where(code == 255, np.uint32(0x7FC00000), bits).astype(np.uint32).view(np.float32)


COMPOSITES = (Composite("fp8", _check, codes=_codes, values=_values),)
