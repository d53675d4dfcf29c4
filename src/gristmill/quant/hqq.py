"""HQQ's codes of 1, 2, 3, 4 or 8 bits: "hqq". w = (code − zero)·scale, zero a float.

The matrix is taken as one run of N·K weights, laid out as (N·K/group, group) for axis 1 (a row
is a group) or (group, N·K/group) for axis 0 (a column is one). That is cut into 8/bits parts
by rows (three bits: ten, padded), and the parts share bytes (three bits: words), the first part
in the highest bits.

parts: codes u8 (rows·bits/8, columns), three bits: i32 (⌈rows/10⌉, columns); scales and zeros, one
for each group. settings: bits, group, axis.
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
)
from gristmill.quant.encoding import F32, U8
from gristmill.types import RawTensor


def _grid(tensor: RawTensor) -> tuple[int, int, int]:
    """bits, rows and columns of the laid-out matrix."""
    bits = setting(tensor, "bits", 1, 8)
    group = setting(tensor, "group", 1, tensor.elements)
    if bits not in (1, 2, 3, 4, 8) or tensor.elements % group:
        raise FormatError(
            f"Tensor '{tensor.name}' in hqq: {tensor.elements} weights of {bits} bits in groups "
            f"of {group} cannot be."
        )
    other = tensor.elements // group
    return (bits, other, group) if setting(tensor, "axis", 0, 1) else (bits, group, other)


def _check(tensor: RawTensor) -> None:
    bits, rows, columns = _grid(tensor)
    per = 10 if bits == 3 else 8 // bits
    if bits != 3 and rows % per:
        raise FormatError(f"Tensor '{tensor.name}' in hqq: {rows} rows are no {per} equal parts.")
    expect(tensor, "codes", ("i32",) if bits == 3 else ("u8",), (-(-rows // per), columns))
    shape = (rows, 1) if setting(tensor, "axis", 0, 1) else (1, columns)
    scales = expect(tensor, "scales", FLOATS, shape)
    expect(tensor, "zeros", (scales.encoding,), shape)


def _run(tensor: RawTensor, first: int, last: int) -> U8:
    """Codes [first, last) of the run."""
    bits, _, columns = _grid(tensor)
    per = 10 if bits == 3 else 8 // bits
    found = part(tensor, "codes")
    packed = np.frombuffer(found.data, "<u4" if bits == 3 else np.uint8).reshape(found.shape)
    low, high = first // columns, -(-last // columns)
    out = np.empty((high - low, columns), np.uint8)
    mask, height = (1 << bits) - 1, found.shape[0]
    for i in range(per):  # the rows of this part that are wanted
        a, b = max(low, i * height), min(high, (i + 1) * height)
        if a < b:
            some = packed[a - i * height : b - i * height] >> (bits * (per - 1 - i))
            out[a - low : b - low] = (some & mask).astype(np.uint8)
    return out.reshape(-1)[first - low * columns : last - low * columns]


def _values(tensor: RawTensor, start: int, stop: int) -> F32:
    k = tensor.shape[1]
    _, _, columns = _grid(tensor)
    at = np.arange(start * k, stop * k)
    group = at // columns if setting(tensor, "axis", 0, 1) else at % columns
    scale = finite(tensor, "scales", floats(part(tensor, "scales")).reshape(-1))
    zero = finite(tensor, "zeros", floats(part(tensor, "zeros")).reshape(-1))
    codes = _run(tensor, start * k, stop * k).astype(np.float32)
    return ((codes - zero[group]) * scale[group]).reshape(stop - start, k)


def _coded(tensor: RawTensor) -> bool:
    axis, group = setting(tensor, "axis", 0, 1), setting(tensor, "group", 1, tensor.elements)
    return axis == 1 and tensor.shape[1] % group == 0


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    """Where groups lie along rows."""
    n, k = tensor.shape
    bits, _, group = _grid(tensor)
    scales = part(tensor, "scales")
    scale = finite(tensor, "scales", floats(scales).reshape(n, -1)[start:stop])
    zero = finite(tensor, "zeros", floats(part(tensor, "zeros")).reshape(n, -1)[start:stop])
    code = _run(tensor, start * k, stop * k).reshape(stop - start, k)
    return Codes(code, bits, group, scale, scale_type(scales), zero)


COMPOSITES = (Composite("hqq", _check, _codes, _values, _coded),)
