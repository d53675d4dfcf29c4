"""How Ollama writes: a JSON object a line, errors as one sentence, times as RFC 3339."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from gristmill.serve.errors import dumps, error_body, shaped

PREFIX = "/api/"


def error_form(inner: Mapping[str, object]) -> dict[str, object]:
    """``{"error": "sentence"}``."""
    return {"error": inner["message"]}


class Lines:
    """A ``Framing``: newline-delimited JSON. It has no word for a sign of life."""

    media_type = "application/x-ndjson"

    def chunk(self, value: object) -> bytes:
        """One line."""
        return _one_line(dumps(value))

    def alive(self) -> bytes:
        """Nothing."""
        return b""

    def failure(self, error: BaseException) -> bytes:
        """A last line ``{"error": ...}``."""
        return _one_line(dumps(shaped(error_body(error), PREFIX)))

    def end(self) -> bytes:
        """Nothing: the last object says that it is the last."""
        return b""


# Ends of lines to Unicode, and so to Python clients, which would cut an object in two there.
_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}


def _one_line(data: bytes) -> bytes:
    for end, escaped in _ENDS.items():
        data = data.replace(end, escaped)
    return data + b"\n"


def stamp(seconds: float) -> str:
    """A moment, given in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def nanoseconds(seconds: float) -> int:
    """A duration."""
    return max(0, round(seconds * 1e9))
