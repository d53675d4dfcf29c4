"""One streamed request to an OpenAI-compatible endpoint, and what it tells of time.

While a round runs only bytes and clock times are kept: reading JSON then would take time from
the server when both share a machine. ``read`` makes sense of them afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx

from gristmill.errors import GristmillError, UsageError

Api = Literal["chat", "completions"]
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_TEXT_FIELDS = ("reasoning_content", "reasoning", "content")
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its label in reports, its base URL (ending in ``/v1``), the model to ask for."""

    label: str
    base: str
    model: str = ""
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for. ``due`` is when it ought to be sent (perf_counter), if ever."""

    prompt: str
    tokens: int
    due: float | None = None


@dataclass(slots=True)
class Raw:
    """What came back: pieces of the body with the clock when each came. Times: perf_counter."""

    started: float
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])
    ended: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request. ``times`` are of its events with text, in perf_counter seconds."""

    started: float
    ended: float
    times: tuple[float, ...] = ()
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first content token."""
        return self.times[0] - self.started

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None with fewer than two."""
        if self.tokens < 2 or len(self.times) < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive events with text."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def latency(self) -> float:
        """Seconds from the start to the last content token."""
        return self.times[-1] - self.started


def parse_endpoint(text: str) -> Endpoint:
    """``URL`` or ``label=URL``; ``/v1`` is added to a URL without a path.

    Raises UsageError for what is no URL.
    """
    label, equals, url = text.partition("=")
    if not equals or "/" in label or ":" in label:
        label, url = "", text
    if "://" not in url:
        url = f"http://{url}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UsageError(f"{text!r} is not a URL: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"{text!r} is not a URL like http://127.0.0.1:8000 (or name=URL).")
    base = url.rstrip("/")
    if parsed.path in ("", "/"):
        base += "/v1"
    port = f":{parsed.port}" if parsed.port else ""
    return Endpoint(label or f"{parsed.host}{port}", base)


class Client:
    """Sends requests to one endpoint."""

    def __init__(
        self, endpoint: Endpoint, api: Api, http: httpx.AsyncClient, ignore_eos: bool = True
    ) -> None:
        self.endpoint = endpoint
        self._api: Api = api
        self._http = http
        self._ignore_eos = ignore_eos

    async def model(self) -> str:
        """The first model that the endpoint names. Raises GristmillError when it answers none."""
        url = f"{self.endpoint.base}/models"
        try:
            answer = await self._http.get(url)
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            raise GristmillError(f"{url} answers with status {code}.") from error
        except httpx.HTTPError as error:
            raise GristmillError(f"{url} cannot be reached: {_said(error)}.") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise GristmillError(f"{url} names no model; say one with --model.") from error

    async def send(self, ask: Ask) -> Raw:
        """One request, streamed to its end. Never raises for what the server does."""
        url = self.endpoint.base + _PATHS[self._api]
        raw = Raw(time.perf_counter() if ask.due is None else ask.due)
        try:
            async with self._http.stream("POST", url, json=self._body(ask)) as answer:
                raw.status = answer.status_code
                async for piece in answer.aiter_raw():
                    raw.pieces.append((time.perf_counter(), piece))
        except httpx.HTTPError as error:
            raw.error = _said(error)
        raw.ended = time.perf_counter()
        return raw

    def _body(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.endpoint.model,
            "max_tokens": ask.tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._ignore_eos:
            body["ignore_eos"] = True
        if self._api == "chat":
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        return body


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def read(raw: Raw) -> Answer:
    """The times and the text of a request. An ``Answer`` with ``error`` if it went wrong."""
    if raw.error is not None:
        return Answer(raw.started, raw.ended, error=raw.error)
    if raw.status != 200:
        body = b"".join(piece for _, piece in raw.pieces)
        return Answer(raw.started, raw.ended, error=f"status {raw.status}: {_short(body)}")
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    for when, data in events(raw.pieces):
        if data == "[DONE]":
            break
        try:
            event: Any = json.loads(data)
        except ValueError:
            return Answer(raw.started, raw.ended, error=f"not JSON: {data[:_LONGEST_ERROR]!r}")
        if not isinstance(event, dict):
            continue
        fields = cast(dict[str, Any], event)
        if fields.get("error"):
            return Answer(raw.started, raw.ended, error=str(fields["error"])[:_LONGEST_ERROR])
        text = _text_of(fields)
        if text:
            times.append(when)
            texts.append(text)
        if isinstance(fields.get("usage"), dict):
            usage = fields["usage"]
    if not times:
        return Answer(raw.started, raw.ended, error="the answer holds no text")
    details: Any = usage.get("prompt_tokens_details")
    cached: Any = cast(dict[str, Any], details).get("cached_tokens") if details else 0
    return Answer(
        raw.started,
        raw.ended,
        tuple(times),
        _count(usage.get("completion_tokens")) or len(times),
        _count(usage.get("prompt_tokens")),
        _count(cached),
        "".join(texts),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _short(body: bytes) -> str:
    """An error's sentence, if the body has OpenAI's form."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error"]["message"])
    return text[:_LONGEST_ERROR]


def _text_of(event: dict[str, Any]) -> str:
    """Answer and reasoning text of an event of either API; a role alone is no content."""
    choices: Any = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return ""
    choice: Any = cast(list[Any], choices)[0]
    if not isinstance(choice, dict):
        return ""
    fields = cast(dict[str, Any], choice)
    if isinstance(fields.get("text"), str):
        return fields["text"]
    delta: Any = fields.get("delta")
    if not isinstance(delta, dict):
        return ""
    parts = cast(dict[str, Any], delta)
    reasoning = next((parts[f] for f in _TEXT_FIELDS[:2] if isinstance(parts.get(f), str)), "")
    content = parts.get("content")
    return reasoning + (content if isinstance(content, str) else "")


def events(pieces: list[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """Data of each server-sent event, with the time of the piece that completed it.

    Comments, names and ids are left out (WHATWG HTML, "Server-sent events").
    """
    held = b""
    for when, piece in pieces:
        held = (held + piece).replace(b"\r\n", b"\n")
        *whole, held = held.split(b"\n\n")
        for block in whole:
            data = _data(block)
            if data:
                yield when, data
    if held.strip() and pieces:
        data = _data(held)
        if data:
            yield pieces[-1][0], data


def _data(block: bytes) -> str:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines).decode("utf-8", "replace")
