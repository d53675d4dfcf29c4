"""Eight-bit codes with one scale: q8_0 (and q8_k, ggml's form of activations).

q8_0, 32 weights in 34 bytes: d float16, q int8[32]. w = q·d.
q8_k, 256 weights in 292 bytes: d float32, q int8[256], then the sums of q over each 16 as
int16[16], which decoding does not need. w = q·d.
"""

from __future__ import annotations

import numpy as np

from gristmill.quant.encoding import F32, U8, Encoding, half_bytes, halves, inverse


def _unpack_q8_0(blocks: U8) -> F32:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * halves(blocks, 0)


def _pack_q8_0(values: F32) -> U8:
    d, d_bytes = half_bytes(np.abs(values).max(axis=1, keepdims=True) / np.float32(127), "scale")
    q = np.clip(np.rint(values * inverse(d)), -127, 127).astype(np.int8)
    return np.concatenate([d_bytes, q.view(np.uint8)], axis=1)


def _unpack_q8_k(blocks: U8) -> F32:
    d = blocks[:, :4].view("<f4")
    return blocks[:, 4:260].view(np.int8).astype(np.float32) * d


ENCODINGS = (
    Encoding("q8_0", 32, 34, _unpack_q8_0, _pack_q8_0),
    Encoding("q8_k", 256, 292, _unpack_q8_k),
)
