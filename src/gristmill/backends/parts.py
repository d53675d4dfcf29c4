"""What a model wants of a file's tensors: rows cut, turned, dealt and paired."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gristmill import quant
from gristmill.backends.ops import Part, Wanted
from gristmill.errors import FormatError
from gristmill.types import RawTensor


def find_part(wanted: Wanted, part: Part, tensors: Mapping[str, RawTensor]) -> RawTensor:
    """The rows of the file's tensor that ``part`` names, in the order wanted.

    A view where rows stay in order, else a copy. Raises FormatError if the file has no such
    tensor, or it cannot be cut so; UnsupportedError for an unknown encoding. A tensor of too few
    axes is returned as it is: the caller compares shapes.
    """
    tensor = tensors.get(part.tensor)
    if tensor is None:
        raise FormatError(f"The model has no tensor {part.tensor!r}, which {wanted.name!r} needs.")
    if not tensor.shape:
        return tensor  # no shape that anyone wants, as the caller will say
    if part.expert is not None:
        if len(tensor.shape) != 3:
            return tensor  # no shape that anyone wants, likewise
        one = quant.rows(tensor, part.expert, part.expert + 1)
        tensor = replace(one, shape=one.shape[1:])
    # Cutting checks the encoding and that the bytes fit the shape, for all rows too.
    cut = quant.rows(tensor, *(part.rows or (0, tensor.shape[0])))
    cut = quant.turned(cut) if part.turned else cut
    if part.row:
        cut = replace(cut, shape=(1, *cut.shape))
    if wanted.kind == "vector" and part.dealt:
        cut = replace(cut, shape=(math.prod(cut.shape),))
    cut = quant.dealt(cut) if part.dealt else cut
    return quant.paired(cut, part.heads) if part.heads else cut
