"""Plain numbers, one element a block: f32 f16 bf16 f64, whole numbers, f8_e4m3 f8_e5m2 f8_e8m0.

bf16 is the upper half of a float32. f64 and wide whole numbers lose precision here: everything
decodes to float32. The eight-bit floats are those of the OCP specification (OFP8, MX 1.0):
e4m3 has no infinities and one NaN a sign, e5m2 is the upper half of a float16, e8m0 is a power
of two, 2^(e − 127), with 255 for NaN.
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


def _e4m3_table() -> F32:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = np.ldexp(1.0 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    value[(code & 127) == 127] = np.nan
    return np.where(code & 128, -value, value).astype(np.float32)


E4M3 = _e4m3_table()
"""The value of each of the 256 codes of f8_e4m3."""
E5M2 = (np.arange(256, dtype=np.uint16) << 8).view("<f2").astype(np.float32)
"""Of f8_e5m2: the upper bytes of halves."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The sixteen floats of four bits: sign, two bits of exponent, one of mantissa."""
E2M1[8] = -0.0


def _unpack_e4m3(blocks: U8) -> F32:
    return E4M3[blocks]


def _unpack_e5m2(blocks: U8) -> F32:
    return E5M2[blocks]


def _unpack_e8m0(blocks: U8) -> F32:
    code = blocks.astype(np.uint32)
    bits = np.where(code == 0, np.uint32(0x00400000), code << 23)
    bits = np.where(code == 255, np.uint32(0x7FC00000), bits)
    return bits.astype(np.uint32).view(np.float32)


ENCODINGS = (
    _plain("f32", "<f4", writes=True),
    _plain("f16", "<f2", writes=True),
    Encoding("bf16", 1, 2, _unpack_bf16, _pack_bf16),
    _plain("f64", "<f8"),
    _plain("i8", "i1"),
    _plain("i16", "<i2"),
    _plain("i32", "<i4"),
    _plain("i64", "<i8"),
    _plain("u8", "u1"),
    _plain("u16", "<u2"),
    _plain("u32", "<u4"),
    _plain("u64", "<u8"),
    Encoding("f8_e4m3", 1, 1, _unpack_e4m3),
    Encoding("f8_e5m2", 1, 1, _unpack_e5m2),
    Encoding("f8_e8m0", 1, 1, _unpack_e8m0),
)
