"""Four-bit floats (e2m1: sign, two exponent bits, one of mantissa): mxfp4 and nvfp4.

The sixteen values are ±0, ½, 1, 1½, 2, 3, 4, 6. GGUF's tables count in halves, so the scales
below are half of what the OCP (MX v1.0) and NVIDIA formats write: the products are the same.

mxfp4, 32 weights in 17 bytes: e uint8, codes [16] as in q4_0. w = value·2^(e − 127).
nvfp4, 64 weights in 36 bytes: scales e4m3 uint8 [4], one for each 16 weights, codes [32];
each 8 code bytes hold 16 weights, low halves first. w = value·scale. A scale of 0x7f (NaN in
e4m3) decodes to 0, and the sign bit of a scale is ignored.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, nibbles

_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)

_HALF_E8M0 = np.ldexp(np.float32(1), np.arange(256, dtype=np.int32) - 128).astype(np.float32)


def _half_e4m3() -> F32:
    """Half the value of each scale byte: float32 [256]."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    # Exponent 0 has no hidden one; its mantissas count from the same step as exponent 1's.
    value = np.ldexp(np.where(exponent == 0, mantissa, 8 + mantissa), np.maximum(exponent, 1) - 11)
    return np.where(byte == 0x7F, 0, value).astype(np.float32)


_HALF_E4M3 = _half_e4m3()


def _unpack_mxfp4(blocks: U8) -> F32:
    values = _DOUBLED[nibbles(blocks[:, 1:]).reshape(-1, 32)]
    return values * _HALF_E8M0[blocks[:, :1]]


def _unpack_nvfp4(blocks: U8) -> F32:
    values = _DOUBLED[nibbles(blocks[:, 4:].reshape(-1, 4, 8))]
    return by_group(values, _HALF_E4M3[blocks[:, :4]])


ENCODINGS = (
    Encoding("mxfp4", 32, 17, _unpack_mxfp4),
    Encoding("nvfp4", 64, 36, _unpack_nvfp4),
)
