"""Six-bit codes in blocks of 256, sixteen groups of 16 with an int8 scale each: q6_k.

210 bytes: low bits [128], high bits [64], scales int8[16], d float16. The block is two halves
of 128 elements, each four runs of 32. In a half, low-bit byte j (of 64) holds element j (low)
and 64 + j (high); high-bit byte j (of 32) holds the upper two bits of elements j, 32 + j,
64 + j, 96 + j, lowest first. w = (d·scale)·(q − 32).
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, crumbs, halves, nibbles


def _unpack_q6_k(blocks: U8) -> F32:
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    high = crumbs(blocks[:, 128:192].reshape(-1, 2, 32)).reshape(-1, 256)
    q = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    scale = halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return by_group(q, scale)


ENCODINGS = (Encoding("q6_k", 256, 210, _unpack_q6_k),)
