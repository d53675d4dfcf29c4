"""Two- and three-bit codes in blocks of 256, sixteen groups of 16: q2_k and q3_k.

In both, 32 bytes of code bits hold 128 elements: byte j has elements j, 32 + j, 64 + j, 96 + j,
lowest bits first.

q2_k, 84 bytes: group bytes [16] (scale in the low half, minimum in the high half), codes [64],
d, dmin float16. w = (d·scale)·q − (dmin·min).

q3_k, 110 bytes: third bits [32], codes [64], scales [12], d float16. Bit r of third-bit byte j
is for element 32·r + j; a code without its third bit counts 4 less. The 6-bit scales: the low
halves of bytes 0–7 are the low four bits of scales 0–7, the high halves those of 8–15; bytes
8–11 hold the upper two bits of scales j, 4 + j, 8 + j, 12 + j, lowest first.
w = (d·(scale − 32))·(q − 4 + 4·third).
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, crumbs, halves, nibbles, planes


def _unpack_q2_k(blocks: U8) -> F32:
    groups = nibbles(blocks[:, :16]).astype(np.float32)
    scale = halves(blocks, 80) * groups[:, 0]
    minimum = halves(blocks, 82) * groups[:, 1]
    q = crumbs(blocks[:, 16:80].reshape(-1, 2, 32))
    return by_group(q, scale, minimum)


def _unpack_q3_k(blocks: U8) -> F32:
    low = nibbles(blocks[:, 96:104]).reshape(-1, 16)
    high = crumbs(blocks[:, 104:108]).reshape(-1, 16)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    scale = halves(blocks, 108) * scales.astype(np.float32)
    q = crumbs(blocks[:, 32:96].reshape(-1, 2, 32)).reshape(-1, 256)
    third = planes(blocks[:, :32]).reshape(-1, 256)
    signed = (q | (third << np.uint8(2))).view(np.int8) - np.int8(4)
    return by_group(signed, scale)


ENCODINGS = (
    Encoding("q2_k", 256, 84, _unpack_q2_k),
    Encoding("q3_k", 256, 110, _unpack_q3_k),
)
