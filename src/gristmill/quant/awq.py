"""AWQ's four-bit codes: "awq_gemm" and "awq_gemv" (AutoAWQ's ``version``).

w = scale·(code − zero), a scale and a zero for ``group`` input features.

awq_gemm: codes i32 (K, N/8) and zeros i32 (K/group, N/8): word c of a row has outputs 8c + 0, 2,
4, 6, 1, 3, 5, 7 from its lowest four bits on; scales (K/group, N).
awq_gemv: codes i32 (N, K/8), inputs in order, lowest bits first; zeros i32 (N, width) likewise,
scales (N, 8·width), both padded at the end of a row to the kernel's width.
settings: group.
"""

from __future__ import annotations

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    FLOATS,
    Codes,
    Composite,
    expect,
    finite,
    floats,
    part,
    scale_type,
    setting,
    unpack_low_first,
    words,
)
from gristmill.quant.encoding import U8
from gristmill.types import RawTensor

_DEALT = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
"""Output within a word → the four bits that hold it."""


def _group(tensor: RawTensor) -> int:
    k = tensor.shape[1]
    group = setting(tensor, "group", 1, k)
    if k % group:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: {k} inputs are no groups of {group}."
        )
    return group


def _check_gemm(tensor: RawTensor) -> None:
    n, k = tensor.shape
    groups = k // _group(tensor)
    expect(tensor, "codes", ("i32",), (k, -(-n // 8)))
    expect(tensor, "zeros", ("i32",), (groups, -(-n // 8)))
    expect(tensor, "scales", FLOATS, (groups, n))
    if n % 8:
        raise FormatError(f"Tensor '{tensor.name}' in awq_gemm: {n} outputs are no words of 8.")


def _gemm_columns(packed: np.ndarray, start: int, stop: int) -> U8:
    """Outputs [start, stop) of (rows, N/8) words: uint8 (stop − start, rows)."""
    first = start // 8
    some = np.ascontiguousarray(packed[:, first : -(-stop // 8)])
    codes = unpack_low_first(some, 4, 8 * some.shape[1])
    dealt = codes.reshape(len(some), -1, 8)[:, :, _DEALT].reshape(len(some), -1)
    return np.ascontiguousarray(dealt[:, start - 8 * first : stop - 8 * first].T)


def _codes_gemm(tensor: RawTensor, start: int, stop: int) -> Codes:
    scales = part(tensor, "scales")
    scale = np.ascontiguousarray(floats(scales)[:, start:stop].T)
    return Codes(
        _gemm_columns(words(part(tensor, "codes")), start, stop),
        4,
        _group(tensor),
        finite(tensor, "scales", scale),
        scale_type(scales),
        _gemm_columns(words(part(tensor, "zeros")), start, stop),
    )


def _check_gemv(tensor: RawTensor) -> None:
    n, k = tensor.shape
    group = _group(tensor)
    least = -(-(k // group) // 8)
    step = 1 if group >= 128 else 2 if group >= 64 else 4  # what the kernel reads at once
    expect(tensor, "codes", ("i32",), (n, -(-k // 8)))
    width = least if part(tensor, "zeros").shape == (n, least) else -(-least // step) * step
    expect(tensor, "zeros", ("i32",), (n, width))
    expect(tensor, "scales", FLOATS, (n, 8 * width))
    if k % 8:
        raise FormatError(f"Tensor '{tensor.name}' in awq_gemv: {k} inputs are no words of 8.")


def _codes_gemv(tensor: RawTensor, start: int, stop: int) -> Codes:
    k = tensor.shape[1]
    group = _group(tensor)
    scales = part(tensor, "scales")
    scale = floats(scales)[start:stop, : k // group]
    return Codes(
        unpack_low_first(words(part(tensor, "codes"))[start:stop], 4, k),
        4,
        group,
        finite(tensor, "scales", scale),
        scale_type(scales),
        unpack_low_first(words(part(tensor, "zeros"))[start:stop], 4, k // group),
    )


COMPOSITES = (
    Composite("awq_gemm", _check_gemm, _codes_gemm),
    Composite("awq_gemv", _check_gemv, _codes_gemv),
)
