"""compressed-tensors' whole-number formats: "ct_pack" (pack-quantized), "ct_int8" (int-quantized).

w = scale·(q − zero), q and zero signed. Scales are one for all, one for each row (channel), or
one for each row and ``group`` input features. (Its float formats are fp8, mxfp4_hf, nvfp4_hf.)

ct_pack: codes i32 (N, ⌈K·bits/32⌉), q + 2^(bits − 1), lowest bits first, running on into the next
word; zeros, for asymmetric ones, i32 (⌈N·bits/32⌉, groups), packed so along N, or i8 (N, groups)
as they are; g_idx i32 (K), optional, the group of each input. settings: bits, group.
ct_int8: codes i8 (N, K); zeros i8, as the scales. settings: group.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    FLOATS,
    Codes,
    Composite,
    expect,
    finite,
    part,
    scale_type,
    setting,
    spread,
    spread_rows,
    unpack_low_first,
    words,
)
from gristmill.quant.encoding import F32, U8
from gristmill.quant.gptq import order_of
from gristmill.types import RawTensor


def _groups(tensor: RawTensor) -> tuple[int, int]:
    """Columns of a group, number of groups."""
    k = tensor.shape[1]
    group = setting(tensor, "group", 1, k)
    return group, -(-k // group)


def _check_scales(tensor: RawTensor) -> None:
    _, groups = _groups(tensor)
    scales = spread(tensor, "scales", groups)
    if scales.encoding not in FLOATS:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its scales are {scales.encoding}."
        )


def _scales(tensor: RawTensor, start: int, stop: int) -> F32:
    """float32 (stop − start, groups)."""
    scale = spread_rows(part(tensor, "scales"), start, stop)
    groups = _groups(tensor)[1]
    if scale.shape[1] != groups:
        scale = np.repeat(scale, groups, axis=1)
    return finite(tensor, "scales", scale)


def _check_pack(tensor: RawTensor) -> None:
    n, k = tensor.shape
    bits = setting(tensor, "bits", 1, 8)
    expect(tensor, "codes", ("i32",), (n, -(-k * bits // 32)))
    _check_scales(tensor)
    groups = _groups(tensor)[1]
    if "zeros" in tensor.parts:
        if part(tensor, "zeros").encoding == "i8":
            spread(tensor, "zeros", groups)
        else:
            expect(tensor, "zeros", ("i32",), (-(-n * bits // 32), groups))
    order_of(tensor)


def _codes_pack(tensor: RawTensor, start: int, stop: int) -> Codes:
    n, k = tensor.shape
    bits = setting(tensor, "bits", 1, 8)
    half = 1 << (bits - 1)
    zero: U8 | int = half
    if "zeros" in tensor.parts:
        zeros = part(tensor, "zeros")
        if zeros.encoding == "i8":
            zero = _signed(tensor, start, stop, half)
        else:
            packed = np.ascontiguousarray(words(zeros).T)
            zero = np.ascontiguousarray(unpack_low_first(packed, bits, n)[:, start:stop].T)
    code = unpack_low_first(words(part(tensor, "codes"))[start:stop], bits, k)
    order = order_of(tensor)
    return Codes(
        code if order is None else np.ascontiguousarray(code[:, order]),
        bits,
        _groups(tensor)[0],
        _scales(tensor, start, stop),
        scale_type(part(tensor, "scales")),
        zero,
        order=order,
    )


def _signed(tensor: RawTensor, start: int, stop: int, half: int) -> U8:
    """Zeros that lie as signed bytes, as those of codes with ``half`` added."""
    found = spread_rows(part(tensor, "zeros"), start, stop) + np.float32(half)
    groups = _groups(tensor)[1]
    if found.min(initial=0) < 0 or found.max(initial=0) > 255:
        raise FormatError(f"Tensor '{tensor.name}' in {tensor.encoding} has zeros out of range.")
    return np.ascontiguousarray(np.broadcast_to(found.astype(np.uint8), (stop - start, groups)))


def _check_int8(tensor: RawTensor) -> None:
    expect(tensor, "codes", ("i8",), tensor.shape)
    _check_scales(tensor)
    if "zeros" in tensor.parts and spread(tensor, "zeros", _groups(tensor)[1]).encoding != "i8":
        raise FormatError(f"Tensor '{tensor.name}' in ct_int8: its zeros are not i8.")


def _codes_int8(tensor: RawTensor, start: int, stop: int) -> Codes:
    raw = np.frombuffer(part(tensor, "codes").data, np.uint8).reshape(tensor.shape)
    plain = Codes(
        raw[start:stop] ^ np.uint8(128),  # signed + 128
        8,
        _groups(tensor)[0],
        _scales(tensor, start, stop),
        scale_type(part(tensor, "scales")),
        128,
    )
    if "zeros" not in tensor.parts:
        return plain
    return replace(plain, zero=_signed(tensor, start, stop, 128))


COMPOSITES = (
    Composite("ct_pack", _check_pack, _codes_pack),
    Composite("ct_int8", _check_int8, _codes_int8),
)
