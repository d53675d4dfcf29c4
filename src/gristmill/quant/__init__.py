"""Encodings: how weights lie on disk, and what they decode to.

One module per family gives block shapes and plain numpy ``unpack`` functions; this door
collects them, checks sizes, and decodes or cuts a tensor. A tensor that consists of several of
its file is of one of ``COMPOSITES``. See docs/encodings.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError, UnsupportedError
from gristmill.quant import (
    awq,
    bnb,
    compressed,
    exl3,
    floats,
    fp4,
    fp8,
    gptq,
    hqq,
    iq1,
    iq2,
    iq3,
    iq4,
    mlx,
    mxfp4,
    nvfp4,
    q1_0,
    q2_k,
    q4_0,
    q4_k,
    q5_0,
    q6_k,
    q8_0,
    tq,
)
from gristmill.quant.composite import Codes, Composite, cut, deal, undeal
from gristmill.quant.encoding import Encoding
from gristmill.types import RawTensor

__all__ = [
    "COMPOSITES",
    "ENCODINGS",
    "Codes",
    "Composite",
    "Encoding",
    "composite_of",
    "dealt",
    "decode",
    "encode",
    "encoding_of",
    "mxfp4_blocks",
    "paired",
    "rows",
    "turned",
]

mxfp4_blocks = mxfp4.blocks

_FAMILIES = (floats, q8_0, q5_0, q4_0, q1_0, q6_k, q4_k, q2_k, iq4, iq3, iq2, iq1, tq, fp4)

ENCODINGS: Mapping[str, Encoding] = MappingProxyType(
    {encoding.name: encoding for family in _FAMILIES for encoding in family.ENCODINGS}
)
"""Every encoding that can be read, by the name ``RawTensor.encoding`` uses."""


_SEVERAL = (fp8, awq, gptq, compressed, mlx, bnb, mxfp4, nvfp4, hqq, exl3)

COMPOSITES: Mapping[str, Composite] = MappingProxyType(
    {family.name: family for module in _SEVERAL for family in module.COMPOSITES}
)
"""Every family of tensors that consist of several, by the name ``RawTensor.encoding`` uses."""


def encoding_of(tensor: RawTensor) -> Encoding | Composite:
    """The encoding of a tensor. Raises UnsupportedError if it is none that is known."""
    return COMPOSITES.get(tensor.encoding) or _plain(tensor)


def composite_of(tensor: RawTensor) -> Composite | None:
    """The family of a tensor that consists of several; None for one that is whole."""
    return COMPOSITES.get(tensor.encoding)


def _plain(tensor: RawTensor) -> Encoding:
    found = ENCODINGS.get(tensor.encoding)
    if found is None:
        raise UnsupportedError(
            f"Tensor '{tensor.name}' is encoded as '{tensor.encoding}', which is not supported; "
            f"supported are {', '.join((*ENCODINGS, *COMPOSITES))}."
        )
    return found


def decode(tensor: RawTensor) -> npt.NDArray[np.float32]:
    """The tensor's weights: a new float32 array of its shape.

    Raises UnsupportedError for an unknown encoding, FormatError if the tensor's bytes do not
    fit its shape.
    """
    family = composite_of(tensor)
    if family is not None:
        return family.decode(tensor)
    return _plain(tensor).decode(tensor.data, tensor.shape, tensor.name)


def encode(name: str, array: npt.ArrayLike) -> bytes:
    """Encode an array as ``name``, rounding to nearest: for f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1.

    Raises UnsupportedError for any other name, FormatError if the last axis is not a multiple
    of the block.
    """
    found = ENCODINGS.get(name)
    if found is None or found.pack is None:
        written = ", ".join(e.name for e in ENCODINGS.values() if e.pack is not None)
        raise UnsupportedError(f"Cannot write weights as '{name}'; written are {written}.")
    return found.encode(array)


def paired(tensor: RawTensor, heads: int) -> RawTensor:
    """The tensor with the rows of each head dealt from halves into pairs: a copy.

    (Of a composite nothing is copied: the order is noted.)
    Row i of a head's first half becomes its row 2i, row i of the second half 2i + 1. Raises
    FormatError if the rows are not whole heads of an even number, or cannot be parted.
    """
    count = tensor.shape[0] if tensor.shape else 0
    rows(tensor, 0, count)  # the bytes fit the shape
    if heads < 1 or count % (2 * heads) or not count or tensor.data.nbytes % count:
        raise FormatError(f"Tensor '{tensor.name}' of shape {tensor.shape} is not {heads} heads.")
    if composite_of(tensor) is not None:
        return deal(tensor, heads)
    if math.prod(tensor.shape[1:]) % _plain(tensor).row_granule:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding} cannot be reordered by rows."
        )
    data = np.frombuffer(tensor.data, np.uint8).reshape(heads, 2, count // heads // 2, -1)
    dealt = np.ascontiguousarray(data.transpose(0, 2, 1, 3)).reshape(-1)
    return RawTensor(tensor.name, tensor.encoding, tensor.shape, dealt.data)


def dealt(tensor: RawTensor) -> RawTensor:
    """The tensor with first its rows 0, 2, 4, …, then 1, 3, 5, …: a copy (of a composite: noted).

    Raises FormatError for an odd number of rows, or ones that cannot be parted.
    """
    count = tensor.shape[0] if tensor.shape else 0
    rows(tensor, 0, count)  # the bytes fit the shape
    if count % 2 or not count or tensor.data.nbytes % count:
        raise FormatError(f"Tensor '{tensor.name}' of shape {tensor.shape} has no two halves.")
    if composite_of(tensor) is not None:
        return undeal(tensor)
    if math.prod(tensor.shape[1:]) % _plain(tensor).row_granule:
        raise FormatError(
            f"Tensor '{tensor.name}' in {tensor.encoding} cannot be reordered by rows."
        )
    data = np.frombuffer(tensor.data, np.uint8).reshape(count // 2, 2, -1)
    halves = np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(-1)
    return RawTensor(tensor.name, tensor.encoding, tensor.shape, halves.data)


def turned(tensor: RawTensor) -> RawTensor:
    """The matrix (K, N) as (N, K): a copy. Raises UnsupportedError if its values lie in blocks."""
    if composite_of(tensor) is not None or _plain(tensor).block != 1 or len(tensor.shape) != 2:
        raise UnsupportedError(
            f"Tensor '{tensor.name}' in {tensor.encoding} of shape {tensor.shape} lies the other "
            "way round than it is read: only plain values can be turned."
        )
    rows(tensor, 0, tensor.shape[0])  # the bytes fit the shape
    data = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape, -1)
    across = np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(-1)
    return RawTensor(tensor.name, tensor.encoding, tensor.shape[::-1], across.data)


def rows(tensor: RawTensor, start: int, stop: int) -> RawTensor:
    """Rows ``start`` to ``stop`` (not included) of the first axis: a view, nothing is copied.

    Of a 1-D tensor these are elements, and a cut must fall on the encoding's granule. Raises
    FormatError for a cut inside a granule, outside the tensor, or of a tensor whose bytes do
    not fit its shape; UnsupportedError for an unknown encoding.
    """
    family = composite_of(tensor)
    if family is not None:
        family.verify(tensor)
        _check_rows(tensor, start, stop)
        return cut(tensor, start, stop)
    encoding = _plain(tensor)
    size = encoding.nbytes(tensor.shape, tensor.name)
    if tensor.data.nbytes != size:
        raise FormatError(
            f"Tensor '{tensor.name}' of shape {tensor.shape} in {encoding.name} takes {size} "
            f"bytes, but has {tensor.data.nbytes}."
        )
    _check_rows(tensor, start, stop)
    per_row = math.prod(tensor.shape[1:])
    granule = encoding.row_granule
    if start * per_row % granule or stop * per_row % granule:
        raise FormatError(
            f"Tensor '{tensor.name}' in {encoding.name} cannot be cut at {start} and {stop}: "
            f"only multiples of {granule} elements can be."
        )
    first, last = (at * per_row // granule * encoding.block_bytes for at in (start, stop))
    data = tensor.data.cast("B")[first:last]
    return RawTensor(tensor.name, tensor.encoding, (stop - start, *tensor.shape[1:]), data)


def _check_rows(tensor: RawTensor, start: int, stop: int) -> None:
    count = tensor.shape[0] if tensor.shape else 0
    if not 0 <= start <= stop <= count:
        raise FormatError(
            f"Rows {start} to {stop} of tensor '{tensor.name}' were asked for, but it has {count}."
        )
