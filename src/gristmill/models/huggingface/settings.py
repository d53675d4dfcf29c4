"""Typed access to config.json: every value checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from gristmill.errors import FormatError

_MANY = 1 << 31


class Settings:
    """Typed access to a JSON object: a wrong kind is a FormatError that names file and key."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there with another value than null."""
        return self.values.get(key) is not None

    def section(self, key: str) -> Settings:
        """The object under ``key``; empty when there is none."""
        value = self.values.get(key)
        if value is None:
            return Settings({}, f"{self.where}: {key}")
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Settings(cast("Mapping[str, object]", value), f"{self.where}: {key}")

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, at least 0."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MANY:
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list of numbers")
        items = cast("list[object]", value)
        return [Settings({key: item}, self.where).number(key) for item in items]

    def _wrong(self, key: str, value: object, allowed: str) -> FormatError:
        if value is None:
            return FormatError(f"{self.where} has no {key!r}, which must be {allowed}.")
        return FormatError(f"{self.where}: {key!r} is {value!r:.60}; it must be {allowed}.")
