"""Four-bit codes in blocks of 32: q4_0 (scale) and q4_1 (scale and minimum).

Byte i of the 16 code bytes holds element i in its low half and element i + 16 in its high half.
q4_0, 18 bytes: d float16, codes. w = (q − 8)·d.
q4_1, 20 bytes: d float16, m float16, codes. w = q·d + m.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, half_bytes, halves, inverse, nibbles


def _unpack_q4_0(blocks: U8) -> F32:
    q = nibbles(blocks[:, 2:]).reshape(-1, 32).view(np.int8) - np.int8(8)
    return q.astype(np.float32) * halves(blocks, 0)


def _unpack_q4_1(blocks: U8) -> F32:
    q = nibbles(blocks[:, 4:]).reshape(-1, 32).astype(np.float32)
    return q * halves(blocks, 0) + halves(blocks, 2)


def signed_scale(values: F32, levels: int) -> tuple[F32, U8]:
    """The scale that puts a block's largest weight on the lowest code, −``levels``.

    Codes reach one further below zero than above it, so the scale takes the opposite of that
    weight's sign. Returns it rounded to float16, with its bytes.
    """
    at = np.abs(values).argmax(axis=1)[:, None]
    return half_bytes(np.take_along_axis(values, at, axis=1) / np.float32(-levels), "scale")


def scale_and_minimum(values: F32, levels: int) -> tuple[F32, U8, F32, U8]:
    """Scale and minimum that spread ``levels`` steps over a block's range, as float16."""
    m, m_bytes = half_bytes(values.min(axis=1, keepdims=True), "minimum")
    d, d_bytes = half_bytes((values.max(axis=1, keepdims=True) - m) / np.float32(levels), "scale")
    return d, d_bytes, m, m_bytes


def _join(q: U8) -> U8:
    return q[:, :16] | (q[:, 16:] << np.uint8(4))


def _pack_q4_0(values: F32) -> U8:
    d, d_bytes = signed_scale(values, 8)
    q = np.clip(np.rint(values * inverse(d)) + 8, 0, 15).astype(np.uint8)
    return np.concatenate([d_bytes, _join(q)], axis=1)


def _pack_q4_1(values: F32) -> U8:
    d, d_bytes, m, m_bytes = scale_and_minimum(values, 15)
    q = np.clip(np.rint((values - m) * inverse(d)), 0, 15).astype(np.uint8)
    return np.concatenate([d_bytes, m_bytes, _join(q)], axis=1)


ENCODINGS = (
    Encoding("q4_0", 32, 18, _unpack_q4_0, _pack_q4_0),
    Encoding("q4_1", 32, 20, _unpack_q4_1, _pack_q4_1),
)
