"""What an encoding is: a block of bytes that stands for a block of weights.

A tensor's elements lie row after row; each row is a whole number of blocks; each block holds
``block`` consecutive elements in ``block_bytes`` bytes, little-endian throughout. An encoding's
module gives one function, ``unpack``: blocks (n, block_bytes) uint8 → weights (n, block)
float32, in plain array algebra. That function is the specification of the encoding; everything
faster is tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError, UnsupportedError

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

CHUNK = 1 << 16
"""Elements unpacked at a time: the temporaries stay in the processor's cache, memory bounded."""

_SHIFTS_2 = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_SHIFTS_1 = np.arange(8, dtype=np.uint8)[:, None]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to store weights. ``pack`` is None where this project does not write it."""

    name: str
    block: int
    """Elements of a block, consecutive along a row (the input features, K)."""
    block_bytes: int
    unpack: Callable[[U8], F32]
    """(n, block_bytes) uint8 → (n, block) float32."""
    pack: Callable[[F32], U8] | None = None
    """(n, block) float32 → (n, block_bytes) uint8, rounding to nearest."""

    @property
    def row_granule(self) -> int:
        """Elements along a row that may not be cut apart."""
        return self.block

    @property
    def bits_per_weight(self) -> float:
        """Bits a weight takes on disk, scales included."""
        return self.block_bytes * 8 / self.block

    def nbytes(self, shape: Sequence[int], name: str = "?") -> int:
        """Bytes a tensor of this ``shape`` takes.

        Raises FormatError, naming the tensor, if the shape has a negative size or its rows are
        not whole blocks.
        """
        if any(size < 0 for size in shape):
            raise FormatError(f"Tensor '{name}' has a negative size in its shape {tuple(shape)}.")
        row = shape[-1] if shape else 1
        if row % self.block:
            raise FormatError(
                f"Tensor '{name}' has rows of {row} elements, but {self.name} stores rows in "
                f"blocks of {self.block}: the row must be a multiple of that."
            )
        return math.prod(shape) // self.block * self.block_bytes

    def decode(self, data: memoryview | bytes | U8, shape: Sequence[int], name: str = "?") -> F32:
        """Decode a whole tensor: its bytes → a new float32 array of ``shape``.

        ``data`` must be contiguous and exactly as long as ``nbytes(shape)``, else FormatError.
        Infinities and NaNs in the file come out as they are.
        """
        expected = self.nbytes(shape, name)
        raw = np.frombuffer(data, dtype=np.uint8)
        if raw.size != expected:
            raise FormatError(
                f"Tensor '{name}' of shape {tuple(shape)} in {self.name} takes {expected} bytes, "
                f"but has {raw.size}."
            )
        blocks = raw.reshape(-1, self.block_bytes)
        out = np.empty((len(blocks), self.block), dtype=np.float32)
        step = CHUNK // self.block
        with np.errstate(all="ignore"):  # a file's infinities are not arithmetic accidents
            for start in range(0, len(blocks), step):
                out[start : start + step] = self.unpack(blocks[start : start + step])
        return out.reshape(shape)

    def encode(self, array: npt.ArrayLike, name: str = "?") -> bytes:
        """Encode an array (any float dtype, taken as float32), rounding to nearest.

        Raises UnsupportedError if this project does not write the encoding, FormatError if the
        rows are not whole blocks or a value is too large for it (or not finite).
        """
        if self.pack is None:
            raise UnsupportedError(f"Tensor '{name}' cannot be written as {self.name}.")
        with np.errstate(all="ignore"):
            values = np.ascontiguousarray(array, dtype=np.float32)
            size = self.nbytes(np.shape(array), name)
            packed = self.pack(values.reshape(-1, self.block)).reshape(-1)
        if packed.dtype != np.uint8 or packed.size != size:
            raise AssertionError(f"pack of {self.name} gave {packed.size} bytes, not {size}")
        return packed.tobytes()


# ---------------------------------------------------- pieces of a block


def halves(blocks: U8, at: int, count: int = 1) -> F32:
    """``count`` float16 values from byte ``at`` of each block, as float32: (n, count)."""
    return blocks[:, at : at + 2 * count].view("<f2").astype(np.float32)


def nibbles(packed: U8) -> U8:
    """(…, m) bytes → (…, 2, m): all low halves, then all high halves."""
    out = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])
    return out


def crumbs(packed: U8) -> U8:
    """(…, m) bytes → (…, 4, m): the two lowest bits of each byte first."""
    return (packed[..., None, :] >> _SHIFTS_2) & np.uint8(3)


def planes(packed: U8) -> U8:
    """(…, m) bytes → (…, 8, m): bit 0 of every byte, then bit 1, … as 0 or 1."""
    return (packed[..., None, :] >> _SHIFTS_1) & np.uint8(1)


def bits(packed: U8) -> U8:
    """(…, m) bytes → (…, 8·m): each byte's bits in turn, lowest first, as 0 or 1."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def by_group(
    values: npt.NDArray[np.integer | np.floating], scale: F32, minimum: F32 | None = None
) -> F32:
    """value · scale − minimum, where consecutive values share them: (n, K) by (n, groups).

    ``values`` has n·K elements in any shape, ``scale`` and ``minimum`` are (n, groups).
    """
    grouped = values.reshape(*scale.shape, -1).astype(np.float32, copy=False)
    out = grouped * scale[:, :, None]
    if minimum is not None:
        out -= minimum[:, :, None]
    return out.reshape(len(scale), -1)


def half_bytes(values: F32, what: str) -> tuple[F32, U8]:
    """Round (n, 1) float32 to float16: the rounded values, and their bytes (n, 2).

    Raises FormatError if one is not finite or beyond float16's 65,504.
    """
    rounded = values.astype("<f2")
    if not np.isfinite(rounded).all():
        raise FormatError(f"A block's {what} is not a finite float16: its weights are too large.")
    return rounded.astype(np.float32), rounded.view(np.uint8)


def inverse(scale: F32) -> F32:
    """1 / scale, and 0 where the scale is 0."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
