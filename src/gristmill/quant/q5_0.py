"""Five-bit codes in blocks of 32: q5_0 (scale) and q5_1 (scale and minimum).

The low four bits lie as in q4_0; the fifth bits are bit i of a 32-bit word for element i.
q5_0, 22 bytes: d float16, fifth bits [4], low bits [16]. w = (q − 16)·d.
q5_1, 24 bytes: d float16, m float16, fifth bits [4], low bits [16]. w = q·d + m.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, bits, halves, inverse, nibbles
from gristmill.quant.q4_0 import scale_and_minimum, signed_scale


def _codes(blocks: U8, at: int) -> U8:
    low = nibbles(blocks[:, at + 4 : at + 20]).reshape(-1, 32)
    return low | (bits(blocks[:, at : at + 4]) << np.uint8(4))


def _unpack_q5_0(blocks: U8) -> F32:
    q = _codes(blocks, 2).view(np.int8) - np.int8(16)
    return q.astype(np.float32) * halves(blocks, 0)


def _unpack_q5_1(blocks: U8) -> F32:
    return _codes(blocks, 4).astype(np.float32) * halves(blocks, 0) + halves(blocks, 2)


def _split(q: U8) -> tuple[U8, U8]:
    high = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return high, (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _pack_q5_0(values: F32) -> U8:
    d, d_bytes = signed_scale(values, 16)
    q = np.clip(np.rint(values * inverse(d)) + 16, 0, 31).astype(np.uint8)
    return np.concatenate([d_bytes, *_split(q)], axis=1)


def _pack_q5_1(values: F32) -> U8:
    d, d_bytes, m, m_bytes = scale_and_minimum(values, 31)
    q = np.clip(np.rint((values - m) * inverse(d)), 0, 31).astype(np.uint8)
    return np.concatenate([d_bytes, m_bytes, *_split(q)], axis=1)


ENCODINGS = (
    Encoding("q5_0", 32, 22, _unpack_q5_0, _pack_q5_0),
    Encoding("q5_1", 32, 24, _unpack_q5_1, _pack_q5_1),
)
