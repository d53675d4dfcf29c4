"""EXL3 (exllamav3): "exl3", 1 to 8 bits a weight on a trellis, W = diag(suh)·H·Wq·H·diag(svh).

Wq (K, N) lies in tiles of 16 × 16. A tile is a ring of 256·bits bits: the value at place p comes
from the 16 bits that end with bit (p + 1)·bits − 1, counted from the highest bit of each
little-endian 32-bit word. Place p = 8t + j is row 2(t mod 4) + (j & 1) + 8((j >> 1) & 1), column
⌊t / 4⌋ + 8(j >> 2). A codebook turns the 16 bits into a float16: three of them, each a
multiplication modulo 2³² and a little arithmetic (``_codebook``). H is blocks of the 128 × 128
Hadamard matrix over √128.

parts: trellis i16 (K/16, N/16, 16·bits), suh f16 (K), svh f16 (N) (old files: su i16 (K/16), sv
i16 (N/16), a bit for each sign, lowest first). settings: codebook ("default", "mcg", "mul1").
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError
from gristmill.quant.composite import Composite, expect, finite, floats, part
from gristmill.quant.encoding import F32
from gristmill.types import RawTensor

CODEBOOKS = ("default", "mcg", "mul1")
MULTIPLIERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
_BLOCK = 128


@cache
def _codebook(name: str) -> F32:
    """The value of each of the 2^16 states: float16 numbers as float32."""
    state = np.arange(1 << 16, dtype=np.uint32)
    if name == "mul1":
        word = state * np.uint32(MULTIPLIERS["mul1"])
        total = word.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.uint32) + np.uint32(0x6400)
        half = total.astype("<u2").view("<f2").astype(np.float64)  # 1024 + the sum
        step, base = np.array([0x1EEE, 0xC931], "<u2").view("<f2").astype(np.float64)
        return (half * step + base).astype(np.float16).astype(np.float32)
    if name == "mcg":
        word = state * np.uint32(MULTIPLIERS["mcg"])
    else:
        word = state * np.uint32(89226354) + np.uint32(64248484)
    word = (word & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    halves = word.view("<f2").reshape(-1, 2).astype(np.float64)
    return halves.sum(axis=1).astype(np.float16).astype(np.float32)


@cache
def _hadamard() -> F32:
    """128 × 128, symmetric, its rows of length 1."""
    h = np.ones((1, 1), np.float64)
    while len(h) < _BLOCK:
        h = np.block([[h, h], [h, -h]])
    return (h / np.sqrt(_BLOCK)).astype(np.float32)


@cache
def _places() -> npt.NDArray[np.intp]:
    """Place in the ring of each element of a tile, row after row: (256,)."""
    p = np.arange(256)
    t, j = p // 8, p % 8
    row = 2 * (t % 4) + (j & 1) + 8 * ((j >> 1) & 1)
    return np.argsort(row * 16 + t // 4 + 8 * (j >> 2))


def _bits(tensor: RawTensor) -> int:
    width = (part(tensor, "trellis").shape[-1:] or (0,))[0]
    if width % 16 or not 16 <= width <= 128:
        raise FormatError(
            f"Tensor '{tensor.name}' in exl3 has tiles of {width} numbers; 16 for each of 1 to 8 "
            "bits are allowed."
        )
    return width // 16


def _check(tensor: RawTensor) -> None:
    n, k = tensor.shape
    bits = _bits(tensor)
    if n % _BLOCK or k % _BLOCK:
        raise FormatError(
            f"Tensor '{tensor.name}' in exl3 has the shape {[n, k]}; multiples of {_BLOCK} are "
            "wanted."
        )
    expect(tensor, "trellis", ("i16",), (k // 16, n // 16, 16 * bits))
    for role, size in (("u", k), ("v", n)):
        if f"s{role}" in tensor.parts:
            expect(tensor, f"s{role}", ("i16",), (size // 16,))
        else:
            expect(tensor, f"s{role}h", ("f16",), (size,))
    if tensor.settings.get("codebook") not in CODEBOOKS:
        raise FormatError(f"Tensor '{tensor.name}' in exl3 names no codebook.")


def _signs(tensor: RawTensor, role: str) -> F32:
    if f"s{role}" not in tensor.parts:
        return finite(tensor, f"s{role}h", floats(part(tensor, f"s{role}h")))
    raw = np.frombuffer(part(tensor, f"s{role}").data, np.uint8)
    return np.float32(1) - 2 * np.unpackbits(raw, bitorder="little").astype(np.float32)


def _inner(tensor: RawTensor, first: int, last: int) -> F32:
    """Wq of tile columns [first, last): float32 (K, 16·(last − first))."""
    bits, found = _bits(tensor), part(tensor, "trellis")
    raw = np.frombuffer(found.data, "<u2").reshape(found.shape)[:, first:last]
    tiles_k, tiles_n = raw.shape[:2]
    ring = np.ascontiguousarray(raw).view("<u4").reshape(-1, 8 * bits).byteswap().view(np.uint8)
    # Three bytes hold any 16 bits: the byte of a window's first bit and the two after it.
    start = ((np.arange(1, 257) * bits - 16) % (256 * bits))[_places()]
    size = 32 * bits
    byte = start // 8
    state = np.zeros((len(ring), 256), np.uint32)
    for i in range(3):
        state = (state << np.uint32(8)) | ring[:, (byte + i) % size]
    state = (state >> (8 - start % 8).astype(np.uint32)) & np.uint32(0xFFFF)
    tiles = _codebook(str(tensor.settings["codebook"]))[state]
    shaped = tiles.reshape(tiles_k, tiles_n, 16, 16).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(shaped).reshape(16 * tiles_k, 16 * tiles_n)


def _values(tensor: RawTensor, start: int, stop: int) -> F32:
    k = tensor.shape[1]
    h, u, v = _hadamard(), _signs(tensor, "u"), _signs(tensor, "v")
    first, last = start // _BLOCK, -(-stop // _BLOCK)
    out = np.empty(((last - first) * _BLOCK, k), np.float32)
    for i in range(first, last):  # each by itself: sums in the same order however it is cut
        weight = _inner(tensor, 8 * i, 8 * i + 8)
        weight = np.matmul(h, weight.reshape(k // _BLOCK, _BLOCK, _BLOCK)).reshape(k, _BLOCK)
        weight *= u[:, None]
        weight = weight @ h
        weight *= v[i * _BLOCK : (i + 1) * _BLOCK]
        out[(i - first) * _BLOCK : (i - first + 1) * _BLOCK] = weight.T
    return out[start - first * _BLOCK : stop - first * _BLOCK]


COMPOSITES = (Composite("exl3", _check, values=_values),)
