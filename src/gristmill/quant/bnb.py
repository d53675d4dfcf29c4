"""bitsandbytes: "bnb_nf4", "bnb_fp4" (four bits, tables of values) and "bnb_int8" (LLM.int8).

Four bits: the weights lie in one run of codes, row after row, the first in a byte's high four
bits. w = table[code]·absmax[i // blocksize], i counted through the whole matrix. Double
quantisation stores absmax j as a byte: nested_table[byte]·nested_absmax[j // nested_blocksize] +
nested_offset.

parts: codes u8 (⌈N·K/2⌉ in all), absmax f32, or u8 with nested_absmax f32 and nested_table f32
(256); table f32 (16). settings: blocksize, nested_blocksize, nested_offset.

bnb_int8: codes i8 (N, K), scales f32 (N): w = code·scale/127.
"""

from __future__ import annotations

import math

import numpy as np

from gristmill.errors import FormatError
from gristmill.quant.composite import (
    Codes,
    Composite,
    expect,
    finite,
    floats,
    part,
    setting,
)
from gristmill.quant.encoding import F32, U8
from gristmill.types import RawTensor

_MOST = 1 << 20
_STEP = np.float32(1.0 / 127.0)


def _check(tensor: RawTensor) -> None:
    count = tensor.elements
    codes = part(tensor, "codes")
    if codes.encoding != "u8" or codes.data.nbytes != -(-count // 2):
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its codes are {codes.encoding} of shape "
            f"{list(codes.shape)}; {-(-count // 2)} bytes are wanted."
        )
    expect(tensor, "table", ("f32",), (16,))
    blocks = -(-count // setting(tensor, "blocksize", 1, _MOST))
    if "nested_absmax" not in tensor.parts:
        expect(tensor, "absmax", ("f32",), (blocks,))
        return
    expect(tensor, "absmax", ("u8",), (blocks,))
    expect(tensor, "nested_table", ("f32",), (256,))
    outer = -(-blocks // setting(tensor, "nested_blocksize", 1, _MOST))
    expect(tensor, "nested_absmax", ("f32",), (outer,))
    offset = tensor.settings.get("nested_offset")
    if isinstance(offset, bool) or not isinstance(offset, float) or not math.isfinite(offset):
        raise FormatError(f"Tensor '{tensor.name}': its nested_offset is {offset!r}.")


def _absmax(tensor: RawTensor, first: int, last: int) -> F32:
    """The scales of blocks [first, last)."""
    found = part(tensor, "absmax")
    if "nested_absmax" not in tensor.parts:
        return floats(found)[first:last]
    size = setting(tensor, "nested_blocksize", 1, _MOST)
    table, outer = (floats(part(tensor, role)) for role in ("nested_table", "nested_absmax"))
    offset = tensor.settings["nested_offset"]
    bytes_ = np.frombuffer(found.data, np.uint8)[first:last]
    return table[bytes_] * outer[np.arange(first, last) // size] + np.float32(offset)


def _raw(tensor: RawTensor, start: int, stop: int) -> U8:
    """The codes of rows [start, stop), one after the other."""
    k = tensor.shape[1]
    first, last = start * k, stop * k
    raw = np.frombuffer(part(tensor, "codes").data, np.uint8)[first // 2 : -(-last // 2)]
    codes = np.stack((raw >> 4, raw & 15), axis=1).reshape(-1)
    return codes[first % 2 : first % 2 + last - first]


def _table(tensor: RawTensor) -> F32:
    return finite(tensor, "table", floats(part(tensor, "table")))


def _values(tensor: RawTensor, start: int, stop: int) -> F32:
    k = tensor.shape[1]
    first, last = start * k, stop * k
    size = setting(tensor, "blocksize", 1, _MOST)
    block = first // size
    absmax = finite(tensor, "absmax", _absmax(tensor, block, -(-last // size)))
    scale = absmax[np.arange(first, last) // size - block]
    return (_table(tensor)[_raw(tensor, start, stop)] * scale).reshape(stop - start, k)


def _even(tensor: RawTensor) -> bool:
    """Whether a row has whole blocks, or a block whole rows."""
    size, k = setting(tensor, "blocksize", 1, _MOST), tensor.shape[1]
    return k % size == 0 or size % k == 0


def _codes(tensor: RawTensor, start: int, stop: int) -> Codes:
    k, size = tensor.shape[1], setting(tensor, "blocksize", 1, _MOST)
    blocks = np.arange(start * k, stop * k, min(size, k)) // size
    absmax = _absmax(tensor, int(blocks[0]), int(blocks[-1]) + 1)[blocks - blocks[0]]
    return Codes(
        _raw(tensor, start, stop).reshape(-1, k),
        bits=4,
        group=min(size, k),
        scale=finite(tensor, "absmax", absmax).reshape(stop - start, -1),
        scale_type="f32",
        number="table",
        table=_table(tensor),
    )


def _check_int8(tensor: RawTensor) -> None:
    expect(tensor, "codes", ("i8",), tensor.shape)
    expect(tensor, "scales", ("f32",), tensor.shape[:1])


def _codes_int8(tensor: RawTensor, start: int, stop: int) -> Codes:
    raw = np.frombuffer(part(tensor, "codes").data, np.uint8).reshape(tensor.shape)
    scale = floats(part(tensor, "scales"))[start:stop, None] * _STEP
    code = raw[start:stop] ^ np.uint8(128)
    return Codes(code, 8, tensor.shape[1], finite(tensor, "scales", scale), "f32", 128)


COMPOSITES = (
    Composite("bnb_nf4", _check, _codes, _values, _even),
    Composite("bnb_fp4", _check, _codes, _values, _even),
    Composite("bnb_int8", _check_int8, _codes_int8),
)
