"""Composite encodings: a matrix that lies in several tensors of its file.

A family's module gives ``check`` (every part's type and shape) and one of two readings of rows:

- ``codes``: whole-number codes with scales by groups of columns. What native layouts are packed
  from, without loss: w[n, k] = scale[n, g] · (code[n, k] − zero[n, g]) + low[n, g], g = k // group.
- ``values``: float32, for encodings that are tables of values.

``decode`` of the whole follows from either: it is the specification, compared in the tests with
the format's own library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError
from gristmill.quant.encoding import F32, U8
from gristmill.types import RawTensor

I32 = npt.NDArray[np.int32]
ScaleType = Literal["f16", "bf16", "f32"]

CHUNK = 1 << 20
"""Weights decoded at a time: the temporaries stay small."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of a matrix as codes.

    code: uint8 (n, K), each below 2^bits. scale: float32 (n, ⌈K / group⌉), exact in
    ``scale_type``. zero: uint8 of the same shape, or one number for all. low: float32 of the
    same shape, exact in ``scale_type``, or None.
    order: int32 (K), the input feature that each stored column belongs to; None: its own.
    """

    code: U8
    bits: int
    group: int
    scale: F32
    scale_type: ScaleType
    zero: U8 | int = 0
    low: F32 | None = None
    order: I32 | None = None

    def values(self) -> F32:
        """The weights, float32 (n, K), columns by input feature."""
        n, k = self.code.shape
        groups: I32 = np.arange(k, dtype=np.int32) // self.group
        with np.errstate(all="ignore"):
            zero = (
                self.zero if isinstance(self.zero, int) else self.zero.astype(np.int16)[:, groups]
            )
            out = (self.code.astype(np.int16) - zero).astype(np.float32) * self.scale[:, groups]
            if self.low is not None:
                out += self.low[:, groups]
        if self.order is not None:
            placed = np.empty((n, k), np.float32)
            placed[:, self.order] = out
            return placed
        return out


@dataclass(frozen=True, slots=True)
class Composite:
    """One family. ``bits_of`` says how many bits a code of this tensor has."""

    name: str
    check: Callable[[RawTensor], None]
    """Raises FormatError, naming tensor and part, for what does not fit together."""
    codes: Callable[[RawTensor, int, int], Codes] | None = None
    values: Callable[[RawTensor, int, int], F32] | None = None

    def rows(self, tensor: RawTensor, start: int, stop: int) -> F32:
        """Rows [start, stop) decoded: float32 (stop − start, K)."""
        if self.codes is not None:
            return self.codes(tensor, start, stop).values()
        assert self.values is not None
        return self.values(tensor, start, stop)

    def decode(self, tensor: RawTensor) -> F32:
        """The whole matrix, float32 (N, K). Raises FormatError."""
        self.check(tensor)
        n, k = tensor.shape
        out = np.empty((n, k), np.float32)
        step = max(1, CHUNK // max(k, 1))
        for start in range(0, n, step):
            stop = min(start + step, n)
            out[start:stop] = self.rows(tensor, start, stop)
        return out


# ----------------------------------------------------------- pieces of checks


def part(tensor: RawTensor, role: str) -> RawTensor:
    """A part that must be there. Raises FormatError."""
    found = tensor.parts.get(role)
    if found is None:
        raise FormatError(f"Tensor '{tensor.name}' in {tensor.encoding} has no {role}.")
    return found


def expect(
    tensor: RawTensor, role: str, encodings: tuple[str, ...], shape: tuple[int, ...]
) -> RawTensor:
    """A part of one of these encodings and of this shape. Raises FormatError."""
    found = part(tensor, role)
    if found.encoding not in encodings or found.shape != shape:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its {role} are {found.encoding} of "
            f"shape {list(found.shape)}; {' or '.join(encodings)} of shape {list(shape)} is wanted."
        )
    return found


def setting(tensor: RawTensor, name: str, low: int, high: int) -> int:
    """A whole-number setting in low … high. Raises FormatError."""
    value = tensor.settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its {name} is {value!r}; a whole number "
            f"from {low} to {high} is allowed."
        )
    return value


def words(found: RawTensor) -> npt.NDArray[np.uint32]:
    """An i32 or u32 part as uint32, of its shape."""
    return np.frombuffer(found.data, "<u4").reshape(found.shape)


def finite(tensor: RawTensor, role: str, scale: F32) -> F32:
    """Scales, none of them infinite or NaN. Raises FormatError."""
    if not np.isfinite(scale).all():
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding} has {role} that are no numbers."
        )
    return scale


def unpack_low_first(packed: npt.NDArray[np.uint32], bits: int, count: int) -> U8:
    """(n, words) → (n, count) codes, lowest bits first, a code running on into the next word."""
    n = packed.shape[0]
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        mask = np.uint32((1 << bits) - 1)
        out = ((packed[:, :, None] >> shifts) & mask).astype(np.uint8)
        return np.ascontiguousarray(out.reshape(n, -1)[:, :count])
    raw = np.ascontiguousarray(packed).view(np.uint8).reshape(n, -1)
    flat = np.unpackbits(raw, axis=1, bitorder="little")[:, : count * bits]
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return (flat.reshape(n, count, bits) * weights).sum(axis=2, dtype=np.uint8)
