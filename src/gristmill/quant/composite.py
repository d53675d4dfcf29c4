"""Composite encodings: a matrix that lies in several tensors of its file.

A family's module gives ``check`` (every part's type and shape) and one of two readings of rows:

- ``codes``: codes with scales by groups of columns. What native layouts are packed from, without
  loss: w[n, k] = scale[n, g] · (code[n, k] − zero[n, g]) + low[n, g], g = k // group. A code is a
  whole number, the float that its bits are, or a place in a table of floats.
- ``values``: float32, for encodings that are tables of values.

``decode`` of the whole follows from either, ``values`` first: it is the specification, compared in
the tests with the format's own library.

A cut (``cut``, ``deal``) copies nothing: it is noted in the settings ``stored_rows`` and
``first_row``, or in the part ``row_order``, and a family sees the whole matrix and stored rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError
from gristmill.quant.encoding import F32, U8, Encoding
from gristmill.quant.floats import E2M1, E4M3, E5M2, ENCODINGS
from gristmill.types import RawTensor

I32 = npt.NDArray[np.int32]
ScaleType = Literal["f16", "bf16", "f32", "e4m3"]
Number = Literal["whole", "e4m3", "e5m2", "e2m1", "table"]
Zero = U8 | npt.NDArray[np.uint16] | F32 | int

CHUNK = 1 << 20
"""Weights decoded at a time: the temporaries stay small."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of a matrix as codes.

    code: uint8 (n, K), each below 2^bits. scale: float32 (n, ⌈K / group⌉), exact in
    ``scale_type``. zero: whole numbers of the same shape, or one for all; uint8, but that GPTQ v1
    may reach 2^bits, 256 with 8 bits (uint16); or float32, exact in ``scale_type``. low: float32
    of the same shape, exact in ``scale_type``, or None.
    order: int32 (K), the input feature that each stored column belongs to; None: its own.
    number: what a code is; all but whole numbers have no zero nor low. Floats are finite;
    "table": a place in ``table``, float32 (16).
    factor: what every scale is multiplied with, or, with ``divide``, divided by.
    """

    code: U8
    bits: int
    group: int
    scale: F32
    scale_type: ScaleType
    zero: Zero = 0
    low: F32 | None = None
    order: I32 | None = None
    number: Number = "whole"
    table: F32 | None = None
    factor: float = 1.0
    divide: bool = False

    def values(self) -> F32:
        """The weights, float32 (n, K), columns by input feature."""
        n, k = self.code.shape
        groups: I32 = np.arange(k, dtype=np.int32) // self.group
        with np.errstate(all="ignore"):
            # (Whole numbers so small are exact in float32.)
            zero = np.float32(self.zero) if isinstance(self.zero, int) else self.zero[:, groups]
            codes = self.code.astype(np.float32) if self.number == "whole" else self._floats()
            factor = np.float32(self.factor)
            scale = self.scale / factor if self.divide else self.scale * factor
            out = (codes - zero) * scale[:, groups]
            if self.low is not None:
                out += self.low[:, groups]
        if self.order is not None:
            placed = np.empty((n, k), np.float32)
            placed[:, self.order] = out
            return placed
        return out

    def _floats(self) -> F32:
        tables = {"e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "table": self.table}
        table = tables[self.number]
        assert table is not None
        return table[self.code]

    def picked(self, rows: I32) -> Codes:
        """Some of the rows, in the order given."""
        return replace(
            self,
            code=self.code[rows],
            scale=self.scale[rows],
            zero=self.zero if isinstance(self.zero, int) else self.zero[rows],
            low=None if self.low is None else self.low[rows],
        )


@dataclass(frozen=True, slots=True)
class Composite:
    """One family."""

    name: str
    check: Callable[[RawTensor], None]
    """Raises FormatError, naming tensor and part, for what does not fit together."""
    codes: Callable[[RawTensor, int, int], Codes] | None = None
    """Stored rows [start, stop) of a whole matrix, checked. Raises FormatError."""
    values: Callable[[RawTensor, int, int], F32] | None = None
    """As ``codes``: float32 (stop − start, K)."""
    coded: Callable[[RawTensor], bool] | None = None
    """Whether a tensor has ``codes``, where not all of the family have."""

    def has_codes(self, tensor: RawTensor) -> bool:
        """Whether ``coded_rows`` can be asked for."""
        return self.codes is not None and (self.coded is None or self.coded(whole(tensor)))

    def coded_rows(self, tensor: RawTensor, start: int, stop: int) -> Codes:
        """Rows [start, stop) of the tensor, cut or dealt as it may be, as codes."""
        assert self.codes is not None
        first, last, picked = stored(tensor, start, stop)
        found = self.codes(whole(tensor), first, last)
        return found if picked is None else found.picked(picked)

    def rows(self, tensor: RawTensor, start: int, stop: int) -> F32:
        """Rows [start, stop) decoded: float32 (stop − start, K)."""
        if self.values is None:
            return self.coded_rows(tensor, start, stop).values()
        first, last, picked = stored(tensor, start, stop)
        with np.errstate(all="ignore"):
            found = self.values(whole(tensor), first, last)
        return found if picked is None else found[picked]

    def verify(self, tensor: RawTensor) -> None:
        """Raises FormatError for parts that do not fit together, or a cut outside of them."""
        if len(tensor.shape) != 2 or min(tensor.shape) < 1:
            raise FormatError(
                f"Tensor '{tensor.name}' in {tensor.encoding} has the shape {list(tensor.shape)}; "
                "a matrix is wanted."
            )
        self.check(whole(tensor))

    def decode(self, tensor: RawTensor) -> F32:
        """The whole matrix, float32 (N, K). Raises FormatError."""
        self.verify(tensor)
        n, k = tensor.shape
        out = np.empty((n, k), np.float32)
        step = max(1, CHUNK // k)
        for start in range(0, n, step):
            stop = min(start + step, n)
            out[start:stop] = self.rows(tensor, start, stop)
        return out


# -------------------------------------------------------------------- cuts


def whole(tensor: RawTensor) -> RawTensor:
    """The matrix that a cut is of: what its parts hold."""
    count = tensor.settings.get("stored_rows")
    return tensor if not isinstance(count, int) else replace(tensor, shape=(count, tensor.shape[1]))


def stored(tensor: RawTensor, start: int, stop: int) -> tuple[int, int, I32 | None]:
    """Stored rows that hold rows [start, stop), and which of them these are (None: all)."""
    order = tensor.parts.get("row_order")
    if order is not None and stop > start:
        rows = np.frombuffer(order.data, np.int32)[start:stop]
        first, last = int(rows.min()), int(rows.max()) + 1
        return first, last, rows - np.int32(first)
    first = tensor.settings.get("first_row", 0)
    assert isinstance(first, int)
    return first + start, first + stop, None


def cut(tensor: RawTensor, start: int, stop: int) -> RawTensor:
    """Rows [start, stop): a view. The caller has checked the bounds."""
    order = tensor.parts.get("row_order")
    if order is not None:
        return _ordered(tensor, np.frombuffer(order.data, np.int32)[start:stop])
    first, _, _ = stored(tensor, start, stop)
    settings = {"stored_rows": tensor.shape[0], **tensor.settings, "first_row": first}
    return replace(tensor, shape=(stop - start, tensor.shape[1]), settings=settings)


def deal(tensor: RawTensor, heads: int) -> RawTensor:
    """The rows of each head dealt from halves into pairs; the caller has checked that they go."""
    half = tensor.shape[0] // heads // 2
    return _ordered(tensor, _order(tensor).reshape(heads, 2, half).transpose(0, 2, 1).reshape(-1))


def undeal(tensor: RawTensor) -> RawTensor:
    """The rows dealt from pairs into halves; the caller has checked that their number is even."""
    return _ordered(tensor, _order(tensor).reshape(-1, 2).T.reshape(-1))


def _order(tensor: RawTensor) -> I32:
    """Of every row, the stored row that it is."""
    order = tensor.parts.get("row_order")
    if order is not None:
        return np.frombuffer(order.data, np.int32)
    first, last, _ = stored(tensor, 0, tensor.shape[0])
    return np.arange(first, last, dtype=np.int32)


def _ordered(tensor: RawTensor, rows: I32) -> RawTensor:
    data = np.ascontiguousarray(rows).data.cast("B")
    order = RawTensor("row_order", "i32", (len(rows),), data)
    settings = {"stored_rows": tensor.shape[0], **tensor.settings}
    parts: Mapping[str, RawTensor] = {**tensor.parts, "row_order": order}
    return replace(tensor, shape=(len(rows), tensor.shape[1]), parts=parts, settings=settings)


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


def flag(tensor: RawTensor, name: str) -> bool:
    """A setting that is true or false; false if it is not there."""
    return tensor.settings.get(name) is True


FLOATS = ("f16", "bf16", "f32")


def floats(found: RawTensor) -> F32:
    """A part of plain numbers as float32, of its shape."""
    return _numbers(found).decode(found.data, found.shape, found.name)


def _numbers(found: RawTensor) -> Encoding:
    return next(e for e in ENCODINGS if e.name == found.encoding)


def scale_type(found: RawTensor) -> ScaleType:
    """What stores these scales without loss."""
    return found.encoding if found.encoding in ("f16", "bf16") else "f32"


def spread(tensor: RawTensor, role: str, groups: int) -> RawTensor:
    """Scales that are one for all, one for each row, or one for each row and group.

    Raises FormatError for any other shape than [], [1], [1, 1], [N], [N, 1] or [N, groups].
    """
    found = part(tensor, role)
    n = tensor.shape[0]
    if found.shape not in {(), (1,), (1, 1), (n,), (n, 1), (n, groups)}:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding}: its {role} have the shape "
            f"{list(found.shape)}; one for all, {[n, 1]} or {[n, groups]} are wanted."
        )
    return found


def spread_rows(found: RawTensor, start: int, stop: int) -> F32:
    """Rows of ``spread`` scales: float32 (stop − start, 1 or groups)."""
    values = floats(found)
    if values.size == 1:
        return np.full((stop - start, 1), values.reshape(-1)[0], np.float32)
    return values.reshape(values.shape[0], -1)[start:stop]


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
    raw = np.ascontiguousarray(packed).view(np.uint8).reshape(n, -1)
    if bits == 8:
        return np.ascontiguousarray(raw[:, :count])
    eights = -(-count // 8)  # eight codes take as many bytes as a code has bits
    raw = raw[:, : eights * bits]
    raw = np.pad(raw, ((0, 0), (0, eights * bits - raw.shape[1])))
    parts, mask = raw.reshape(n, eights, bits), np.uint8((1 << bits) - 1)
    out = np.empty((n, eights, 8), np.uint8)
    for i in range(8):
        at, shift = divmod(i * bits, 8)
        code = parts[:, :, at] >> np.uint8(shift)
        if shift + bits > 8:
            code |= parts[:, :, at + 1] << np.uint8(8 - shift)
        np.bitwise_and(code, mask, out=out[:, :, i])
    return np.ascontiguousarray(out.reshape(n, -1)[:, :count])
