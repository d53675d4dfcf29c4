"""A folder's tensors while the parts of quantised modules are taken out and put together."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.errors import FormatError
from gristmill.types import RawTensor

_EMPTY = memoryview(b"")

UNUSED = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "activation_scale",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
)
"""How the writer would round activations or the cache: nothing of the weights."""


class Modules:
    """``tensors`` is what is left and what was made, by the file's names."""

    def __init__(self, tensors: Mapping[str, RawTensor]) -> None:
        self.tensors = dict(tensors)
        self.made: list[RawTensor] = []

    def having(self, part: str) -> list[str]:
        """The modules with a tensor ``<module>.<part>``."""
        end = f".{part}"
        return [name.removesuffix(end) for name in self.tensors if name.endswith(end)]

    def see(self, module: str, part: str) -> RawTensor | None:
        """A tensor of the module, left where it is."""
        return self.tensors.get(f"{module}.{part}")

    def take(self, module: str, part: str) -> RawTensor:
        """A tensor of the module, taken out. Raises FormatError when there is none."""
        found = self.tensors.pop(f"{module}.{part}", None)
        if found is None:
            raise FormatError(f"The quantised module '{module}' has no tensor '{part}'.")
        return found

    def drop(self, module: str, *parts: str) -> None:
        """Leave tensors of the module out, if they are there."""
        for part in parts:
            self.tensors.pop(f"{module}.{part}", None)

    def put(
        self,
        module: str,
        encoding: str,
        shape: tuple[int, ...],
        parts: Mapping[str, RawTensor],
        settings: Mapping[str, int | float | str | bool],
    ) -> None:
        """Add ``<module>.weight``, made of parts."""
        name = f"{module}.weight"
        if name in self.tensors:
            raise FormatError(f"The module '{module}' has its weight twice, plain and quantised.")
        made = RawTensor(name, encoding, shape, _EMPTY, parts, settings)
        self.tensors[name] = made
        self.made.append(made)


def matrix(tensor: RawTensor) -> tuple[int, int]:
    """The sizes of a part with two axes. Raises FormatError."""
    if len(tensor.shape) != 2 or min(tensor.shape) < 1:
        raise FormatError(
            f"Tensor '{tensor.name}' has the shape {list(tensor.shape)}; a matrix is wanted."
        )
    return tensor.shape[0], tensor.shape[1]
