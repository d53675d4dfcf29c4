"""Durations as Ollama's clients write them: a number of seconds, or ``1h30m``, ``500ms``."""

from __future__ import annotations

import math
import re

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|us|µs|ns|m|s)")
LONGEST = 100 * 366 * 86_400.0


def seconds(value: object) -> float | None:
    """The seconds that ``value`` means; None, for ever, when it is negative or beyond a century.

    Raises ValueError with half a sentence: what the value must be.
    """
    if isinstance(value, str):
        text = value.strip()
        sign = -1.0 if text.startswith("-") else 1.0
        found = sign * _text(text.lstrip("+-"))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < 1e300 else math.inf
    else:
        raise ValueError(_WANTED)
    if math.isnan(found):
        raise ValueError(_WANTED)
    return None if found < 0 or found > LONGEST else found


_WANTED = "must be a number of seconds or a duration like '5m' or '1h30m'; negative is for ever"


def _text(text: str) -> float:
    if re.fullmatch(r"\d{1,18}(?:\.\d{0,18})?", text):
        return float(text)
    if len(text) > 64 or not text:
        raise ValueError(_WANTED)
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(_WANTED)
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total
