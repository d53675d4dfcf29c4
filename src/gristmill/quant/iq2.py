"""Points of an 8-dimensional grid with signs, about two bits a weight: iq2_xxs iq2_xs iq2_s.

256 weights a block, in 32 octets of eight; every octet is a grid point (see grids.py), seven
or eight sign bits, and a share of a 4-bit scale: w = d·(2·scale + 1)/8 · point · sign. Where
seven sign bits are stored, the eighth makes the number of minus signs even.

iq2_xxs, 66 bytes: d float16, then for each 32 weights a group of 8 bytes: four point indices,
and a 32-bit word of four 7-bit sign fields (lowest first) and the scale on top.
iq2_xs, 74 bytes: d float16, 32 words of 16 bits (9 bits point index, 7 bits signs), scales
[8]: two 4-bit scales a byte, each for 16 weights, low half first.
iq2_s, 82 bytes: d float16, low index bits [32], sign bits [32], upper index bits [8] (two for
each octet, lowest first), scales [8] as in iq2_xs.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, crumbs, halves, nibbles
from gristmill.quant.grids import even_signs, grid, signs

_EIGHTH = np.array(0.125, dtype=np.float32)


def _scales(blocks: U8, packed: U8) -> F32:
    """d·(2·scale + 1)/8 for each 16 weights: (n, 16)."""
    odd = 2 * nibbles(packed[:, :, None]).reshape(-1, 16) + 1
    return halves(blocks, 0) * odd.astype(np.float32) * _EIGHTH


def _unpack_iq2_xxs(blocks: U8) -> F32:
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    word = groups[:, :, 4:].view("<u4")  # (n, 8, 1)
    odd = 2 * (word[:, :, 0] >> 28) + 1
    scale = halves(blocks, 0) * odd.astype(np.float32) * _EIGHTH
    points = grid("iq2_xxs")[groups[:, :, :4]] * even_signs(word)  # (n, 8, 4, 8)
    return by_group(points, scale)


def _unpack_iq2_xs(blocks: U8) -> F32:
    word = blocks[:, 2:66].view("<u2")  # (n, 32)
    scale = _scales(blocks, blocks[:, 66:])
    points = grid("iq2_xs")[word & 511] * even_signs((word >> np.uint16(9))[:, :, None], 1)[:, :, 0]
    return by_group(points, scale)


def _unpack_iq2_s(blocks: U8) -> F32:
    high = crumbs(blocks[:, 66:74, None]).reshape(-1, 32).astype(np.uint16)
    index = blocks[:, 2:34] | (high << 8)
    scale = _scales(blocks, blocks[:, 74:])
    points = grid("iq2_s")[index] * signs(blocks[:, 34:66])
    return by_group(points, scale)


ENCODINGS = (
    Encoding("iq2_xxs", 256, 66, _unpack_iq2_xxs),
    Encoding("iq2_xs", 256, 74, _unpack_iq2_xs),
    Encoding("iq2_s", 256, 82, _unpack_iq2_s),
)
