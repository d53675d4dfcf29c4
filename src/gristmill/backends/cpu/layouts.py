"""Native layouts of composites: what the packer can take of a matrix in several tensors.

Codes in groups of columns keep their bits, scales and zeros. What has no layout here is decoded
to floats (``weights``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill import quant
from gristmill.quant import Codes, Composite
from gristmill.types import RawTensor

_CHUNK_WEIGHTS = 1 << 22
"""Weights that lie unpacked at a time."""

_BITS = (2, 3, 4, 5, 6, 8)
_TYPES = ("f16", "bf16", "f32", "e4m3")
"""Of scales; their order numbers them for the native side, as ``_Beside`` does."""
_NUMBERS = ("whole", "e4m3", "e5m2", "e2m1", "table")
"""Of codes, the same."""

Order = npt.NDArray[np.int32]


class _Beside(IntEnum):
    """What lies beside the scale of a group."""

    NOTHING = 0
    """A code stands for code − half its range."""
    ZEROS = 1
    LOWS = 2
    FLOAT_ZEROS = 3


@dataclass(frozen=True)
class Coded:
    """A composite whose codes have a native layout."""

    tensor: RawTensor
    family: Composite
    bits: int
    """Bits of a stored code: as many as the file's, or the next number that there is."""
    group: int
    order: Order | None
    """The input feature of each column (``quant.Codes.order``)."""

    def append(self, matrix: Any, pool: Any) -> int:
        """Pack all rows behind those of a native matrix; 0 bytes of floats. Raises FormatError."""
        n, k = self.tensor.shape
        step = max(16, _CHUNK_WEIGHTS // k // 16 * 16)
        for start in range(0, n, step):
            found = self.family.coded_rows(self.tensor, start, min(start + step, n))
            beside = self._beside(found)
            if start == 0:
                matrix.append_codes(
                    n,
                    self.bits,
                    self.group,
                    _TYPES.index(found.scale_type),
                    int(beside),
                    _NUMBERS.index(found.number),
                    found.factor,
                    found.divide,
                    found.table,
                )
            zeros = others = None
            if beside is _Beside.ZEROS:
                zeros = _like(found.scale, found.zero, np.uint8)
            elif beside is _Beside.LOWS:
                others = found.low
            elif beside is _Beside.FLOAT_ZEROS:
                others = _like(found.scale, found.zero, np.float32)
            scale = np.ascontiguousarray(found.scale, dtype=np.float32)
            matrix.put_codes(start, found.code, scale, zeros, others, pool)
        return 0

    def _beside(self, codes: Codes) -> _Beside:
        if codes.low is not None:
            return _Beside.LOWS
        if codes.number != "whole":
            return _Beside.NOTHING
        if isinstance(codes.zero, int):
            if codes.zero == 1 << (self.bits - 1):
                return _Beside.NOTHING
            return _Beside.ZEROS if codes.zero < 256 else _Beside.FLOAT_ZEROS
        return _Beside.ZEROS if codes.zero.dtype == np.uint8 else _Beside.FLOAT_ZEROS


def _like(scale: npt.NDArray[np.float32], zero: Any, kind: Any) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(zero, kind), scale.shape))


def coded(tensor: RawTensor) -> Coded | None:
    """The tensor as codes for the packer, if it is a composite that has a native layout.

    Raises FormatError for what its first row says already.
    """
    family = quant.composite_of(tensor)
    k = tensor.shape[1]
    if family is None or k % 32 or not family.has_codes(tensor):
        return None
    one = family.coded_rows(tensor, 0, 1)
    whole = one.group >= k
    sound = one.group == 16 if one.number == "e2m1" else one.group % 32 == 0 or whole
    if one.bits > _BITS[-1] or not sound or (one.low is not None and one.zero):
        return None
    bits = next(b for b in _BITS if b >= one.bits)
    group = k if whole and one.number != "e2m1" else one.group
    return Coded(tensor, family, bits, group, one.order)


def alike(parts: Sequence[Coded | None]) -> list[Coded | None]:
    """The parts of one matrix that can share a panel: those with the first one's order."""
    first = next((part for part in parts if part is not None), None)
    return [part if first is not None and _same_order(part, first) else None for part in parts]


def _same_order(part: Coded | None, first: Coded) -> bool:
    if part is None or part.order is None or first.order is None:
        return part is not None and part.order is first.order
    return np.array_equal(part.order, first.order)
