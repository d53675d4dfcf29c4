"""Points of a 4-dimensional grid with signs, about three bits a weight: iq3_xxs and iq3_s.

256 weights a block, in 64 quartets of four; every quartet is a grid point (see grids.py); each
32 weights share a 4-bit scale.

iq3_xxs, 98 bytes: d float16, point indices [64], then for each 32 weights a 32-bit word of
four 7-bit sign fields (lowest first; each for eight weights, the eighth sign makes the number
of minus signs even) and the scale on top. w = d·(2·scale + 1)/4 · point · sign.
iq3_s, 110 bytes: d float16, low index bits [64], ninth index bits [8], sign bits [32], scales
[4], two a byte, low half first. w = d·(2·scale + 1) · point · sign.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, bits, by_group, halves, nibbles
from gristmill.quant.grids import even_signs, grid, signs

_QUARTER = np.array(0.25, dtype=np.float32)


def _unpack_iq3_xxs(blocks: U8) -> F32:
    word = blocks[:, 66:].view("<u4")  # (n, 8)
    odd = 2 * (word >> 28) + 1
    scale = halves(blocks, 0) * odd.astype(np.float32) * _QUARTER
    points = grid("iq3_xxs")[blocks[:, 2:66]].reshape(-1, 8, 4, 8) * even_signs(word[:, :, None])
    return by_group(points, scale)


def _unpack_iq3_s(blocks: U8) -> F32:
    index = blocks[:, 2:66] | (bits(blocks[:, 66:74]).astype(np.uint16) << 8)
    odd = 2 * nibbles(blocks[:, 106:110, None]).reshape(-1, 8) + 1
    scale = halves(blocks, 0) * odd.astype(np.float32)
    points = grid("iq3_s")[index].reshape(-1, 32, 8) * signs(blocks[:, 74:106])
    return by_group(points, scale)


ENCODINGS = (
    Encoding("iq3_xxs", 256, 98, _unpack_iq3_xxs),
    Encoding("iq3_s", 256, 110, _unpack_iq3_s),
)
