"""Ternary weights, −d, 0 or d, in blocks of 256: tq1_0 and tq2_0.

tq1_0, 54 bytes: digits [48], last digits [4], d float16. A byte b holds up to five base-3
digits as the fraction b / 256, first digit first: digit i is ⌊3·((b·3^i) mod 256) / 256⌋.
Digit i of byte j is element 32·i + j in bytes 0–31, 160 + 16·i + (j − 32) in bytes 32–47, and
(four digits a byte) 240 + 4·i + (j − 48) in the last four. w = (digit − 1)·d.
tq2_0, 66 bytes: codes [64], d float16; codes lie as in q2_k. w = (q − 1)·d.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, crumbs, halves

_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)[:, None]


def _digits(packed: U8, count: int) -> U8:
    """(n, m) bytes → (n, count·m): the first digit of every byte, then the second, …"""
    fractions = packed[:, None, :] * _POWERS[:count]  # uint8: the whole part drops out
    return ((fractions.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def _unpack_tq1_0(blocks: U8) -> F32:
    parts = (blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)
    digits = np.concatenate([_digits(part, count) for part, count in parts], axis=1)
    return (digits.view(np.int8) - np.int8(1)).astype(np.float32) * halves(blocks, 52)


def _unpack_tq2_0(blocks: U8) -> F32:
    q = crumbs(blocks[:, :64].reshape(-1, 2, 32)).reshape(-1, 256)
    return (q.view(np.int8) - np.int8(1)).astype(np.float32) * halves(blocks, 64)


ENCODINGS = (
    Encoding("tq1_0", 256, 54, _unpack_tq1_0),
    Encoding("tq2_0", 256, 66, _unpack_tq2_0),
)
