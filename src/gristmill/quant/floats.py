"""Plain numbers, one element a block: f32 f16 bf16 f64 i8 i16 i32 i64.

bf16 is the upper half of a float32. f64, i32 and i64 lose precision here: everything decodes
to float32.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding


def _plain(name: str, dtype: str, *, writes: bool = False) -> Encoding:
    def unpack(blocks: U8) -> F32:
        return blocks.view(dtype).astype(np.float32)

    def pack(values: F32) -> U8:
        return values.astype(dtype).view(np.uint8)

    size = np.dtype(dtype).itemsize
    return Encoding(name, 1, size, unpack, pack if writes else None)


def _unpack_bf16(blocks: U8) -> F32:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _pack_bf16(values: F32) -> U8:
    # To nearest, ties to even: add just under half of the last kept bit, plus that bit.
    word = values.view(np.uint32).astype(np.uint64)
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    quiet_nan = (word >> 16) | 0x40  # rounding could carry a NaN over into an infinity
    return np.where(np.isnan(values), quiet_nan, rounded).astype("<u2").view(np.uint8)


ENCODINGS = (
    _plain("f32", "<f4", writes=True),
    _plain("f16", "<f2", writes=True),
    Encoding("bf16", 1, 2, _unpack_bf16, _pack_bf16),
    _plain("f64", "<f8"),
    _plain("i8", "i1"),
    _plain("i16", "<i2"),
    _plain("i32", "<i4"),
    _plain("i64", "<i8"),
)
