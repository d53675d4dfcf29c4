"""Four-bit codes into a fixed table of sixteen uneven levels: iq4_nl and iq4_xs.

iq4_nl, 32 weights in 18 bytes: d float16, codes [16] as in q4_0. w = d·level[q].
iq4_xs, 256 weights in 136 bytes, eight groups of 32: d float16, upper scale bits uint16 (two
bits a group, group 0 lowest), lower scale bits [4] (group 2·j in the low half of byte j), codes
[128], 16 bytes a group as in q4_0. w = (d·(scale − 32))·level[q].
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, by_group, crumbs, halves, nibbles

LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
"""The levels: a fact of the format."""


def _unpack_iq4_nl(blocks: U8) -> F32:
    return LEVELS[nibbles(blocks[:, 2:]).reshape(-1, 32)] * halves(blocks, 0)


def _unpack_iq4_xs(blocks: U8) -> F32:
    low = nibbles(blocks[:, 4:8, None]).reshape(-1, 8)
    high = crumbs(blocks[:, 2:4, None]).reshape(-1, 8)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    scale = halves(blocks, 0) * scales.astype(np.float32)
    return by_group(LEVELS[nibbles(blocks[:, 8:].reshape(-1, 8, 16))], scale)


ENCODINGS = (
    Encoding("iq4_nl", 32, 18, _unpack_iq4_nl),
    Encoding("iq4_xs", 256, 136, _unpack_iq4_xs),
)
