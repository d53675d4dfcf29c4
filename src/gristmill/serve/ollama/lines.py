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
        return dumps(value) + b"\n"

    def alive(self) -> bytes:
        """Nothing."""
        return b""

    def failure(self, error: BaseException) -> bytes:
        """A last line ``{"error": ...}``."""
        return dumps(shaped(error_body(error), PREFIX)) + b"\n"

    def end(self) -> bytes:
        """Nothing: the last object says that it is the last."""
        return b""


def stamp(seconds: float) -> str:
    """A moment, given in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def nanoseconds(seconds: float) -> int:
    """A duration."""
    return max(0, round(seconds * 1e9))
