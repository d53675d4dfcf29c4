"""Ternary points of an 8-dimensional grid with a shift, under two bits a weight: iq1_s iq1_m.

256 weights a block, in 32 octets of eight; every octet is one of 2,048 points (see grids.py)
of −1, 0, 1, shifted as a whole by ⅛ up or down: w = d·(2·scale + 1)·(point ± ⅛).

iq1_s, 50 bytes: d float16, low index bits [32], and for each 32 weights a 16-bit word: the
upper three index bits of four octets (lowest first), a 3-bit scale, and on top the shift (set:
down).
iq1_m, 56 bytes: low index bits [32], a nibble for each octet [16] (upper three index bits, then
the shift; low half first), then four 16-bit words, each with 3-bit scales of four times 16
weights (lowest first) and in its top four bits a quarter of the float16 d, lowest quarter
first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.quant.encoding import F32, U8, Encoding, by_group, halves, nibbles
from gristmill.quant.grids import grid

_SHIFT = np.array([0.125, -0.125], dtype=np.float32)
_FIELDS = np.array([0, 3, 6, 9], dtype=np.uint16)


def _three_bits(word: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """(n, m) words → (n, 4·m): each word's four lowest 3-bit fields, lowest first."""
    return ((word[:, :, None] >> _FIELDS) & np.uint16(7)).reshape(len(word), -1)


def _unpack_iq1_s(blocks: U8) -> F32:
    word = blocks[:, 34:50].view("<u2")  # (n, 8)
    scale = halves(blocks, 0) * (2 * ((word >> 12) & 7) + 1).astype(np.float32)
    index = blocks[:, 2:34] | (_three_bits(word) << 8)
    shift = _SHIFT[word >> 15]
    points = grid("iq1")[index].reshape(-1, 8, 32) + shift[:, :, None]
    return by_group(points, scale)


def _unpack_iq1_m(blocks: U8) -> F32:
    word = blocks[:, 48:56].view("<u2")  # (n, 4)
    quarters = (word >> 12) << np.array([0, 4, 8, 12], dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1, keepdims=True).view(np.float16).astype(np.float32)
    scale = d * (2 * _three_bits(word) + 1).astype(np.float32)  # (n, 16)
    octet = nibbles(blocks[:, 32:48, None]).reshape(-1, 32)
    index = blocks[:, :32] | ((octet & 7).astype(np.uint16) << 8)
    points = grid("iq1")[index] + _SHIFT[octet >> 3][:, :, None]
    return by_group(points, scale)


ENCODINGS = (
    Encoding("iq1_s", 256, 50, _unpack_iq1_s),
    Encoding("iq1_m", 256, 56, _unpack_iq1_m),
)
