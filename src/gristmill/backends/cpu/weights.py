"""Packing: a model's wanted weights, from the file's tensors into native layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill import quant
from gristmill.backends.cpu import layouts
from gristmill.backends.cpu.native import native
from gristmill.backends.ops import Wanted, Weight
from gristmill.backends.parts import find_part
from gristmill.errors import FormatError
from gristmill.types import RawTensor

_CHUNK_WEIGHTS = 1 << 24
"""Weights decoded at a time where an encoding has no native layout."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A tensor whose encoding has no native layout: bytes in the file, bytes as floats."""

    encoding: str
    stored: int
    floats: int


@dataclass(frozen=True, eq=False)
class CpuMatrix:
    """A matrix (N, K) packed in native tiles; ``native`` is the C++ object."""

    native: Any
    shape: tuple[int, ...]
    decoded: tuple[Decoded, ...] = ()
    """Parts that were decoded to float32, or to bfloat16 where that loses nothing."""

    @property
    def nbytes(self) -> int:
        """Memory of the packed tiles."""
        return self.native.nbytes


@dataclass(frozen=True, eq=False)
class CpuExperts:
    """Matrices (E, N, K) packed in native tiles, expert by expert."""

    native: Any
    shape: tuple[int, ...]
    decoded: tuple[Decoded, ...] = ()

    @property
    def nbytes(self) -> int:
        """Memory of the packed tiles."""
        return self.native.nbytes


@dataclass(frozen=True, eq=False)
class CpuVector:
    """float32 values."""

    native: Any
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the values."""
        return 4 * self.shape[0]


Packed = CpuMatrix | CpuVector | CpuExperts


def pack(wanted: Wanted, tensors: Mapping[str, RawTensor], pool: Any) -> Packed:
    """Pack one weight. Raises FormatError (missing, wrong shape), UnsupportedError (encoding)."""
    parts = [find_part(wanted, part, tensors) for part in wanted.parts]
    _check_shape(wanted, parts)
    if wanted.kind == "vector":
        values = np.concatenate([quant.decode(part).reshape(-1) for part in parts])
        values = np.ascontiguousarray(values + np.float32(wanted.plus), dtype=np.float32)
        return CpuVector(native().Vector(values), wanted.shape)
    if wanted.kind == "experts":
        return _pack_experts(wanted, parts, pool)
    matrix = native().Matrix(wanted.shape[1])
    if wanted.kind == "table" and all(part.encoding in _codecs() for part in parts):
        for part in parts:
            matrix.keep(part.encoding, part.shape[0], np.frombuffer(part.data, np.uint8))
        return CpuMatrix(matrix, wanted.shape)
    coded = layouts.alike([layouts.coded(part) for part in parts])
    decoded = [
        (part, _append(matrix, part, pool) if code is None else code.append(matrix, pool))
        for part, code in zip(parts, coded, strict=True)
    ]
    order = next((code.order for code in coded if code is not None), None)
    if order is not None:
        matrix.set_order(order)
    sizes = tuple(Decoded(p.encoding, _stored(p), size) for p, size in decoded if size)
    return CpuMatrix(matrix, wanted.shape, sizes)


def _pack_experts(wanted: Wanted, parts: list[RawTensor], pool: Any) -> CpuExperts:
    count, _, k = wanted.shape
    each = len(parts) // count
    matrices = native().Experts(count, k)
    sizes: list[Decoded] = []
    for expert in range(count):
        of_one = parts[expert * each : (expert + 1) * each]
        coded = [layouts.coded(part) for part in of_one]
        if all(code is not None and code.order is None for code in coded):
            matrix = native().Matrix(k)
            for code in coded:
                if code is not None:
                    code.append(matrix, pool)
            matrices.adopt(expert, matrix)
            continue
        for part in of_one:
            codec, raw, floats = _native_rows(part)
            matrices.append(expert, codec, part.shape[0], raw, pool)
            if floats:
                sizes.append(Decoded(part.encoding, _stored(part), floats))
    return CpuExperts(matrices, wanted.shape, tuple(sizes))


def _stored(part: RawTensor) -> int:
    """Bytes in the file, of those rows of a composite that are cut."""
    count = part.settings.get("stored_rows")
    return part.nbytes * part.shape[0] // count if isinstance(count, int) else part.nbytes


def _check_shape(wanted: Wanted, parts: list[RawTensor]) -> None:
    flat = wanted.kind == "vector"
    if wanted.kind == "experts":
        _check_experts(wanted, parts)
        return
    rows = sum(math.prod(part.shape if flat else part.shape[:1]) for part in parts)
    rest = {() if flat else part.shape[1:] for part in parts}
    if rest != {wanted.shape[1:]} or rows != wanted.shape[0]:
        found = " + ".join(str(list(part.shape)) for part in parts)
        raise FormatError(
            f"{wanted.name!r} should have the shape {list(wanted.shape)}, "
            f"but the file's {', '.join(repr(p.name) for p in parts)} has {found}."
        )


def _check_experts(wanted: Wanted, parts: list[RawTensor]) -> None:
    count, n, k = wanted.shape
    each = len(parts) // count
    for expert in range(count):
        of_one = parts[expert * each : (expert + 1) * each]
        fits = all(len(part.shape) == 2 and part.shape[1] == k for part in of_one)
        if len(parts) % count or not fits or sum(part.shape[0] for part in of_one) != n:
            found = " + ".join(str(list(part.shape)) for part in of_one)
            raise FormatError(
                f"{wanted.name!r} should have {count} matrices of the shape {[n, k]}, but the "
                f"file's {', '.join(repr(p.name) for p in of_one)} has {found} for number {expert}."
            )


def _append(matrix: Any, part: RawTensor, pool: Any) -> int:
    """Append a tensor's rows; the bytes of those that had to be decoded."""
    n, k = part.shape
    step = n if part.encoding in _codecs() else max(16, _CHUNK_WEIGHTS // k // 16 * 16)
    size = 0
    for start in range(0, n, step):
        cut = part if step >= n else quant.rows(part, start, min(start + step, n))
        codec, raw, floats = _native_rows(cut)
        matrix.append(codec, cut.shape[0], raw, pool)
        size += floats
    return size


def _native_rows(part: RawTensor) -> tuple[str, npt.NDArray[np.uint8], int]:
    """Rows as a native codec reads them: its name, the bytes, and how many of them are floats
    because the encoding has none."""
    if part.encoding == "mxfp4_hf":  # lies as GGUF's does
        return "mxfp4", quant.mxfp4_blocks(part).ravel(), 0
    if part.encoding in _codecs():
        return part.encoding, np.frombuffer(part.data, np.uint8), 0
    values = np.ascontiguousarray(quant.decode(part), dtype=np.float32)
    # Codebooks of few bits with powers of two fit bfloat16: half the bytes.
    narrow = quant.composite_of(part) is not None and not (values.view(np.uint16)[:, ::2]).any()
    raw = np.ascontiguousarray(values.view(np.uint16)[:, 1::2]) if narrow else values
    return "bf16" if narrow else "f32", raw.view(np.uint8).ravel(), raw.nbytes


def _codecs() -> frozenset[str]:
    return frozenset(native().codecs())


def matrix_of(weight: Weight) -> Any:
    """The C++ matrix of a weight that an op wants as a matrix."""
    if not isinstance(weight, CpuMatrix):
        raise TypeError("this op wants a matrix")
    return weight.native


def experts_of(weight: Weight) -> Any:
    """The C++ experts of a weight that an op wants as experts."""
    if not isinstance(weight, CpuExperts):
        raise TypeError("this op wants the matrices of experts")
    return weight.native


def vector_of(weight: Weight | None) -> Any:
    """The C++ vector of a weight that an op wants as a vector, or None."""
    if weight is None:
        return None
    if not isinstance(weight, CpuVector):
        raise TypeError("this op wants a vector")
    return weight.native


def decode_row(weight: CpuMatrix, row: int) -> npt.NDArray[np.float32]:
    """One row of a packed matrix as float32 [K]: what ``embed`` reads."""
    return weight.native.decode(row)
