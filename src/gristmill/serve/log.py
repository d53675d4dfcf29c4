"""Log lines: for people, or a JSON object each; and what one line may hold.

A record may carry ``extra={"fields": {...}}``: values that a JSON line has as keys of their own
and a text line behind the sentence; and ``"said": {...}``: values that its sentence has already.
No line holds a prompt, a key or a query string unless ``--log-prompts`` asked for prompts.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler  # a file that logrotate moved is made anew
from typing import Any

from gristmill.errors import ResourceError
from gristmill.options import Options

request_id: ContextVar[str] = ContextVar("gristmill.request_id", default="")
"""The id of the HTTP request that is being answered, on the event loop; "" outside of any."""

client: ContextVar[str] = ContextVar("gristmill.client", default="")
"""Who asks: a digest of the API key, where keys are asked for, else the address."""

MAX_VALUE = 2000
"""Characters of a value in a line; longer ones are cut."""

access = logging.getLogger("gristmill.access")
requests = logging.getLogger("gristmill.requests")

_QUIET = ("uvicorn", "httpx", "httpcore", "filelock", "huggingface_hub", "asyncio")


def set_up(options: Options) -> None:
    """Sends the log where the options say. Raises ResourceError for a file that cannot be."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if options.log_file is not None:
        try:
            handler = WatchedFileHandler(options.log_file, encoding="utf-8")
        except OSError as error:
            raise ResourceError(
                f"The log file '{options.log_file}' cannot be written: {error.strerror}."
            ) from None
    handler.setFormatter(JsonLines() if options.log_format == "json" else TextLines())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler], force=True)
    for quiet in _QUIET:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    # What it warns of is a client's doing (bytes that are no HTTP, a WebSocket), told to that
    # client; with advice on packages to install that would not help here.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The values that a record carries, long texts cut."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return {name: _cut(value) for name, value in fields.items() if value is not None}


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_VALUE:
        return value[:MAX_VALUE] + "…"
    return value


class TextLines(logging.Formatter):
    """``INFO gristmill.access: GET /health 200 client=… ms=0.4``: one line, whatever it holds."""

    def format(self, record: logging.LogRecord) -> str:
        """The sentence, then the fields; a traceback follows on lines of its own."""
        line = f"{record.levelname} {record.name}: {_one_line(record.getMessage())}"
        for name, value in fields_of(record).items():
            line += f" {name}={_word(value)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    plain = text and text.isprintable() and not set(text) & set(" =\"'")
    return text if plain else json.dumps(text, ensure_ascii=False)


class JsonLines(logging.Formatter):
    """``{"time": …, "level": …, "logger": …, "message": …, fields}``: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Fields never hide the four that every line has."""
        now = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said: Mapping[str, Any] = getattr(record, "said", {})
        for name, value in {**said, **fields_of(record)}.items():
            line.setdefault(name, round(value, 6) if isinstance(value, float) else value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
