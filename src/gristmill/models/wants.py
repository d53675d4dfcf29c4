"""Building the list of wanted weights, with the file's tensors checked against the config."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from gristmill.backends.ops import Part, Wanted
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.rope import ROPE_TENSORS
from gristmill.quant import decode
from gristmill.types import RawTensor

_HARMLESS = re.compile(r"blk\.\d+\.(attn_rot_embd|attn\.rotary_emb\.inv_freq)(\.weight)?")
"""Tensors some converters leave in that hold nothing the metadata does not say."""

Rows = tuple[str, int] | tuple[str, int, int]
"""A tensor, its number of rows, and the heads whose rows are to be paired (``ops.Part``)."""


class Wants:
    """Collects ``Wanted``s; every tensor named must exist with the shape given."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self._tensors = tensors
        self._used: set[str] = set()
        self._list: list[Wanted] = []

    def has(self, tensor: str) -> bool:
        """Whether the file has the tensor."""
        return tensor in self._tensors

    def axes(self, tensor: str) -> int:
        """How many axes a tensor has; 0 if it is not there."""
        return len(self._tensors[tensor].shape) if tensor in self._tensors else 0

    def matrix(self, name: str, columns: int, *parts: Rows) -> None:
        """A matrix of ``parts`` (tensor, rows) stacked by rows."""
        for tensor, rows, *_ in parts:
            self.claim(tensor, (rows, columns))
        self._want(name, "matrix", parts, (columns,))

    def vector(self, name: str, *parts: Rows, plus: float = 0.0) -> None:
        """A vector of ``parts`` (tensor, length) joined."""
        for tensor, length, *_ in parts:
            self.claim(tensor, (length,))
        self._want(name, "vector", parts, (), plus)

    def flat(self, name: str, tensor: str, *shape: int) -> None:
        """A vector from a tensor of several axes, in their order."""
        self.claim(tensor, shape)
        size = (math.prod(shape),)
        self._list.append(Wanted(name, "vector", (Part(tensor),), size))

    def table(self, name: str, rows: int, columns: int) -> None:
        """A table for ``embed`` alone, of at least so many rows."""
        found = self._tensors.get(name)
        extra = found is not None and len(found.shape) == 2 and found.shape[0] > rows
        shape = (found.shape[0] if found is not None and extra else rows, columns)
        self.claim(name, shape)
        self._list.append(Wanted(name, "table", (Part(name),), shape))

    def number(self, tensor: str) -> float:
        """The one number that a tensor holds."""
        self.claim(tensor, (1,))
        value = float(cast("list[float]", decode(self._tensors[tensor]).tolist())[0])
        if not math.isfinite(value):
            raise FormatError(f"{tensor!r} holds {value}, which is no finite number.")
        return value

    def experts(
        self, name: str, shape: tuple[int, int, int], parts: Sequence[Sequence[Part]]
    ) -> None:
        """The matrices of experts (E, N, K): the ``parts`` of each. The tensors are claimed."""
        self.add(name, "experts", [part for one in parts for part in one], shape)

    def add(
        self,
        name: str,
        kind: Literal["matrix", "vector", "experts"],
        parts: Sequence[Part],
        shape: tuple[int, ...],
    ) -> None:
        """A weight of parts of tensors that are claimed."""
        self._list.append(Wanted(name, kind, tuple(parts), shape))

    def one_row(self, tensor: str, columns: int) -> None:
        """A matrix of one row, which a file may have as a vector."""
        found = self._tensors.get(tensor)
        flat = found is not None and len(found.shape) == 1
        self.claim(tensor, (columns,) if flat else (1, columns))
        self._list.append(Wanted(tensor, "matrix", (Part(tensor, row=flat),), (1, columns)))

    def ignore(self, *tensors: str) -> None:
        """Tensors that may be there and are not used."""
        self._used.update(tensors)

    def bias(self, name: str, *parts: Rows) -> None:
        """A vector that may be missing: all of its parts, or none."""
        present = [self.has(tensor) for tensor, *_ in parts]
        if all(present):
            self.vector(name, *parts)
        elif any(present):
            missing = parts[present.index(False)][0]
            raise FormatError(
                f"The file has no tensor {missing!r}, though it has others of the same bias."
            )

    def finish(self, architecture: str, layers: int = 0) -> list[Wanted]:
        """The list, if the file holds no tensor that the model would leave unused.

        ``layers``: all so many layers are alike, so what one has (a bias, a norm), all must have.
        """
        if layers:
            self._check_alike(layers)
        for name in self._tensors:
            if (
                name not in self._used
                and name not in ROPE_TENSORS
                and not _HARMLESS.fullmatch(name)
            ):
                raise UnsupportedError(
                    f"The file has a tensor {name!r}, which a {architecture!r} model as served "
                    "here does not use: its answers would be wrong."
                )
        return self._list

    def _check_alike(self, layers: int) -> None:
        found: dict[str, str] = {}
        for name in sorted(self._used):
            start, _, rest = name.partition(".")
            if start == "blk" and name in self._tensors:
                found[rest.partition(".")[2]] = name
        for rest, one in found.items():
            for layer in range(layers):
                if f"blk.{layer}.{rest}" not in self._used:
                    raise FormatError(
                        f"The file has no tensor 'blk.{layer}.{rest}', though it has {one!r}."
                    )

    def claim(self, tensor: str, shape: tuple[int, ...]) -> None:
        """Note that a tensor is used. Raises FormatError if it is missing or of another shape."""
        found = self._tensors.get(tensor)
        if found is None:
            raise FormatError(f"The file has no tensor {tensor!r}, which the model needs.")
        if found.shape != shape:
            raise FormatError(
                f"Tensor {tensor!r} has shape {found.shape}; the model's metadata says {shape}."
            )
        self._used.add(tensor)

    def _want(
        self,
        name: str,
        kind: str,
        parts: tuple[Rows, ...],
        rest: tuple[int, ...],
        plus: float = 0.0,
    ) -> None:
        rows = sum(part[1] for part in parts)
        stacked = tuple(Part(part[0], heads=part[2] if len(part) > 2 else 0) for part in parts)
        self._list.append(
            Wanted(name, "matrix" if kind == "matrix" else "vector", stacked, (rows, *rest), plus)
        )
