"""Four- and five-bit codes in blocks of 256, eight groups of 32: q4_k and q5_k.

Each group g has a 6-bit scale and a 6-bit minimum, packed in 12 bytes: bytes 0–3 hold scales
0–3 and bytes 4–7 minima 0–3 in their low six bits; byte 8 + j holds the low four bits of scale
4 + j (low half) and of minimum 4 + j (high half), whose upper two bits are the upper two bits
of bytes j and 4 + j. w = (d·scale_g)·q − (dmin·min_g).

q4_k, 144 bytes: d, dmin float16, scales [12], codes [128]; each 32 bytes hold two groups, low
halves first.
q5_k, 176 bytes: d, dmin float16, scales [12], fifth bits [32] (bit g of byte i is for element
i of group g), codes [128] as in q4_k.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, halves, nibbles, planes


def scales_and_minima(packed: U8) -> tuple[U8, U8]:
    """The 12 packed bytes (n, 12) → scales and minima, each (n, 8), 0 to 63."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    low = nibbles(rest)  # (n, 2, 4)
    upper = np.stack([first, second], axis=1) >> np.uint8(6) << np.uint8(4)
    late = low | upper
    scales = np.concatenate([first & np.uint8(63), late[:, 0]], axis=1)
    minima = np.concatenate([second & np.uint8(63), late[:, 1]], axis=1)
    return scales, minima


def _weights(blocks: U8, q: U8) -> F32:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    scale = halves(blocks, 0) * scales.astype(np.float32)
    minimum = halves(blocks, 2) * minima.astype(np.float32)
    return by_group(q, scale, minimum)


def _unpack_q4_k(blocks: U8) -> F32:
    return _weights(blocks, nibbles(blocks[:, 16:].reshape(-1, 4, 32)))


def _unpack_q5_k(blocks: U8) -> F32:
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _weights(blocks, low | (planes(blocks[:, 16:48]) << np.uint8(4)))


ENCODINGS = (
    Encoding("q4_k", 256, 144, _unpack_q4_k),
    Encoding("q5_k", 256, 176, _unpack_q5_k),
)
