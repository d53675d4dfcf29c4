"""One and two bits with one scale: q1_0 and q2_0.

q1_0, 128 weights in 18 bytes: d float16, bits [16], element 8·j + i in bit i of byte j.
w = d where the bit is set, −d where it is not.
q2_0, 64 weights in 18 bytes: d float16, codes [16], element 4·j + i in bits 2·i, 2·i + 1 of
byte j. w = (q − 1)·d.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, bits, crumbs, halves


def _unpack_q1_0(blocks: U8) -> F32:
    signs = bits(blocks[:, 2:]).view(np.int8) * np.int8(2) - np.int8(1)
    return signs.astype(np.float32) * halves(blocks, 0)


def _unpack_q2_0(blocks: U8) -> F32:
    q = crumbs(blocks[:, 2:, None]).reshape(-1, 64).view(np.int8) - np.int8(1)
    return q.astype(np.float32) * halves(blocks, 0)


ENCODINGS = (
    Encoding("q1_0", 128, 18, _unpack_q1_0),
    Encoding("q2_0", 64, 18, _unpack_q2_0),
)
