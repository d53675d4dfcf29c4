"""Reading a model's metadata with every value checked: a wrong one is a FormatError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, cast, runtime_checkable

from gristmill.errors import FormatError, UnsupportedError


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> list[object]:
        """The numbers of a numpy array as Python numbers."""
        ...


class Metadata:
    """The keys of one architecture: ``key`` "block_count" is the file's "llama.block_count"."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        name = values.get("general.architecture")
        if not isinstance(name, str):
            raise FormatError("The file's metadata has no text 'general.architecture'.")
        self.architecture = name

    def name(self, key: str) -> str:
        """The key as the file has it."""
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self.name(key) in self.values

    def _get(self, key: str) -> object:
        try:
            return self.values[self.name(key)]
        except KeyError:
            raise FormatError(f"The file's metadata has no {self.name(key)!r}.") from None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in low … high; the key may be missing if there is a default."""
        if default is not None and not self.has(key):
            return default
        value = self._get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(key, value, f"a whole number from {low} to {high}")
        return value

    def uniform(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Like ``integer``, from a key that may also hold one number per layer, all equal."""
        value = self.array(key)
        if value is None:
            return self.integer(key, low, high, default)
        if not value or any(entry != value[0] for entry in value):
            raise UnsupportedError(
                f"{self.name(key)!r} differs between layers; {self.architecture} models with "
                "layers of different shapes are not served."
            )
        first = value[0]
        if isinstance(first, bool) or not isinstance(first, int) or not low <= first <= high:
            raise self._wrong(key, first, f"whole numbers from {low} to {high}")
        return first

    def first(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Like ``integer``, from a key that may also hold one number per layer: the first."""
        return (
            self.integer(key, low, high, default)
            if not self.array(key)
            else self.each(key, low, high, 1)[0]
        )

    def each(self, key: str, low: int, high: int, layers: int) -> list[int]:
        """A whole number for each layer, from a key with one for each or one for all."""
        values = self.array(key)
        if values is None:
            return [self.integer(key, low, high)] * layers
        if len(values) < layers:
            raise FormatError(f"{self.name(key)!r} has {len(values)} entries for {layers} layers.")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise self._wrong(key, value, f"whole numbers from {low} to {high}")
        return cast("list[int]", values[:layers])

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low … high; the key may be missing if there is a default."""
        if default is not None and not self.has(key):
            return default
        value = self._get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            not good
            or not math.isfinite(cast(float, value))
            or not low <= cast(float, value) <= high
        ):
            raise self._wrong(key, value, f"a number from {low:g} to {high:g}")
        return float(cast(float, value))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        if not self.has(key):
            return default
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        if not self.has(key):
            return default
        value = self._get(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def array(self, key: str) -> list[object] | None:
        """The entries of an array; None if the key is missing or holds a single value."""
        value = self.values.get(self.name(key))
        if isinstance(value, _Array):
            value = value.tolist()
        return cast("list[object]", value) if isinstance(value, list) else None

    def _wrong(self, key: str, value: object, allowed: str) -> FormatError:
        return FormatError(f"{self.name(key)!r} is {value!r:.60}; it must be {allowed}.")
