"""GPTQ's codes of 2, 3, 4 or 8 bits: "gptq" (AutoGPTQ, GPTQModel; both checkpoint formats).

w[n, k] = scale[g, n]·(code[k, n] − zero[g, n]), g = g_idx[k] (without one: k // group).

parts: codes i32 (K·bits/32, N), packed along K from the lowest bits, a code of three bits running
on into the next word; zeros i32 (groups, N·bits/32) packed so along N; scales (groups, N); g_idx
i32 (K), optional. settings: bits, group, zero_plus_one (the first format stores zero − 1, and a
stored 2^bits − 1 stands for 2^bits).

Where g_idx is not monotonic (``desc_act``) the codes come out sorted by group, with their
``order``. A g_idx that is 0 throughout was written by tools that had none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    FLOATS,
    I32,
    Codes,
    Composite,
    Zero,
    expect,
    finite,
    flag,
    floats,
    part,
    scale_type,
    setting,
    unpack_low_first,
    words,
)
from gristmill.quant.encoding import U8
from gristmill.types import RawTensor


def _sizes(tensor: RawTensor) -> tuple[int, int, int]:
    """bits, group, number of groups."""
    bits = setting(tensor, "bits", 2, 8)
    group = setting(tensor, "group", 1, tensor.shape[1])
    if bits not in (2, 3, 4, 8):
        raise FormatError(f"Tensor '{tensor.name}' in gptq has codes of {bits} bits.")
    return bits, group, -(-tensor.shape[1] // group)


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    bits, _, groups = _sizes(tensor)
    for what, count in (("inputs", k), ("outputs", n)):
        if count * bits % 32:
            raise FormatError(
                f"Tensor '{tensor.name}' in gptq: {count} {what} of {bits} bits are no whole words."
            )
    expect(tensor, "codes", ("i32",), (k * bits // 32, n))
    expect(tensor, "zeros", ("i32",), (groups, n * bits // 32))
    expect(tensor, "scales", FLOATS, (groups, n))
    order_of(tensor)


def order_of(tensor: RawTensor) -> I32 | None:
    """The inputs sorted by group, from the part g_idx; None where they are so already.

    Raises FormatError for groups that are out of range or not all of ``group`` columns.
    """
    if "g_idx" not in tensor.parts:
        return None
    k = tensor.shape[1]
    group = setting(tensor, "group", 1, k)
    found = expect(tensor, "g_idx", ("i32", "i64"), (k,))
    index = np.frombuffer(found.data, "<i4" if found.encoding == "i32" else "<i8")
    if not index.any() or (index == np.arange(k) // group).all():
        return None
    groups = -(-k // group)
    if index.min() < 0 or index.max() >= groups:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its g_idx goes from {index.min()} to "
            f"{index.max()}, but there are {groups} groups."
        )
    order = np.argsort(index, kind="stable").astype(np.int32)
    if (index[order] != np.arange(k) // group).any():
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its g_idx does not have {group} inputs "
            "in each group."
        )
    return order


def _columns(packed: npt.NDArray[np.uint32], bits: int, start: int, stop: int, count: int) -> U8:
    """Columns [start, stop) of words packed downwards: uint8 (stop − start, count)."""
    return unpack_low_first(np.ascontiguousarray(packed[:, start:stop].T), bits, count)


def _zeros(tensor: RawTensor, bits: int, start: int, stop: int) -> Zero:
    packed = words(part(tensor, "zeros"))
    if (packed == packed[0]).all():  # as symmetric codes have them
        codes = unpack_low_first(packed[:1], bits, tensor.shape[0])
        if (codes == codes[0, 0]).all():
            return int(codes[0, 0]) + flag(tensor, "zero_plus_one")
    first, last = start // 32, -(-stop // 32)  # 32 codes are whole words, whatever their bits
    some = np.ascontiguousarray(packed[:, first * bits : last * bits])
    codes = unpack_low_first(some, bits, some.shape[1] * 32 // bits)
    zero = np.ascontiguousarray(codes[:, start - 32 * first : stop - 32 * first].T)
    if not flag(tensor, "zero_plus_one"):
        return zero
    if bits == 8:  # 256 may be among them, here or in other rows
        return zero.astype(np.uint16) + np.uint16(1)
    return zero + np.uint8(1)


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    bits, group, _ = _sizes(tensor)
    scales = part(tensor, "scales")
    scale = np.ascontiguousarray(floats(scales)[:, start:stop].T)
    code = _columns(words(part(tensor, "codes")), bits, start, stop, tensor.shape[1])
    order = order_of(tensor)
    return Codes(
        code if order is None else np.ascontiguousarray(code[:, order]),
        bits,
        group,
        finite(tensor, "scales", scale),
        scale_type(scales),
        _zeros(tensor, bits, start, stop),
        order=order,
    )


COMPOSITES = (Composite("gptq", _check, _codes),)
