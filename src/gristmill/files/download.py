"""One file over HTTP: resumed after a cut, checked, and in its place only when whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

import httpx

from gristmill.errors import ResourceError, SourceError
from gristmill.files.store import Progress, check_room, disk_errors

TRIES = 5
"""Attempts in a row that bring nothing before a download is given up."""

RETRY_WAIT = 0.5
"""Seconds before the second attempt; doubled for each one after it."""

_TIMEOUT = httpx.Timeout(60.0, connect=30.0)
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"^bytes (\d+)-\d+/(\d+|\*)$")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch: where from, what is known of it, where to."""

    url: str
    target: Path
    label: str
    size: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def part(self) -> Path:
        """What has come so far; kept when the connection is cut, for the next attempt."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def note(self) -> Path:
        """Which version of the file ``part`` is a part of."""
        return self.target.with_name(self.target.name + ".part.json")


class _Cut(Exception):
    """The transfer ended early, for a reason that may pass."""


def download(wanted: Wanted, progress: Progress) -> None:
    """Fetch ``wanted.target``. An earlier attempt is continued if the file is still the same.

    Raises ``SourceError`` when the server refuses, or when size or hash are not as
    announced; ``ResourceError`` when the disk is full, and then leaves nothing behind.
    """
    try:
        _fetch(wanted, progress)
        _verify(wanted)
    except ResourceError:
        _discard(wanted)
        raise
    with disk_errors(wanted.target):
        os.replace(wanted.part, wanted.target)
    wanted.note.unlink(missing_ok=True)


def _fetch(wanted: Wanted, progress: Progress) -> None:
    fruitless = 0
    most = _size(wanted.part)
    with httpx.Client(follow_redirects=True, timeout=_TIMEOUT) as client:
        while True:
            try:
                _attempt(client, wanted, progress)
                return
            except (httpx.TransportError, _Cut) as error:
                have = _size(wanted.part)
                fruitless = 0 if have > most else fruitless + 1
                most = max(most, have)
                if fruitless >= TRIES:
                    raise SourceError(
                        f"{wanted.label} could not be fetched from {_host(wanted.url)}: "
                        f"{error or type(error).__name__}. Try again; what has come is kept."
                    ) from error
                time.sleep(RETRY_WAIT * 2**fruitless)
            except (httpx.InvalidURL, httpx.HTTPError) as error:
                raise SourceError(f"{wanted.url} cannot be fetched: {error}.") from error


def _attempt(client: httpx.Client, wanted: Wanted, progress: Progress) -> None:
    """One request, for the whole file or for the rest of it."""
    have, headers = _resume_point(wanted)
    with client.stream("GET", wanted.url, headers=headers) as answer:
        if answer.status_code == 416 and have:
            _discard(wanted)
            raise _Cut("the server does not continue the download")
        _check_status(answer, wanted)
        start, total = _extent(answer, have)
        if wanted.size is not None and total is not None and total != wanted.size:
            _discard(wanted)
            raise SourceError(
                f"{wanted.label} has {total} bytes at {_host(wanted.url)}; "
                f"{wanted.size} were announced."
            )
        total = total if total is not None else wanted.size
        if total is not None:
            check_room(wanted.target.parent, total - start, wanted.label)
        _write_note(wanted, answer)
        with disk_errors(wanted.target), open(wanted.part, "ab" if start else "wb") as file:
            _copy(answer, file, wanted, start, total, progress)


def _copy(
    answer: httpx.Response,
    file: BinaryIO,
    wanted: Wanted,
    start: int,
    total: int | None,
    progress: Progress,
) -> None:
    done = start
    progress(done, total, wanted.label)
    for chunk in answer.iter_raw():  # as it comes: a fixed size would lose the rest at a cut
        if total is not None and done + len(chunk) > total:
            raise SourceError(f"{wanted.label} is longer than the {total} bytes announced.")
        file.write(chunk)
        done += len(chunk)
        progress(done, total, wanted.label)
    file.flush()
    os.fsync(file.fileno())
    if total is not None and done < total:
        raise _Cut(f"the connection ended after {done} of {total} bytes")


def _resume_point(wanted: Wanted) -> tuple[int, dict[str, str]]:
    """How much is here, and the headers that ask for the rest of the same file."""
    headers = {"Accept-Encoding": "identity", **wanted.headers}
    have = _size(wanted.part)
    if not have:
        return 0, headers
    try:
        note: object = json.loads(wanted.note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0, headers
    if not isinstance(note, dict):
        return 0, headers
    kept = cast("dict[str, object]", note)
    validator = kept.get("validator")
    if kept.get("url") != wanted.url or kept.get("sha256") != wanted.sha256:
        return 0, headers
    if isinstance(validator, str):
        headers["If-Range"] = validator
    elif wanted.sha256 is None:  # nothing would tell a changed file from the old one
        return 0, headers
    headers["Range"] = f"bytes={have}-"
    return have, headers


def _write_note(wanted: Wanted, answer: httpx.Response) -> None:
    etag = answer.headers.get("etag", "")
    validator = etag if etag.startswith('"') else answer.headers.get("last-modified")
    note = {"url": wanted.url, "validator": validator, "sha256": wanted.sha256}
    with disk_errors(wanted.target):
        wanted.note.write_text(json.dumps(note), encoding="utf-8")


def _check_status(answer: httpx.Response, wanted: Wanted) -> None:
    code = answer.status_code
    if code in _RETRIED:
        raise _Cut(f"the server answered {code} {answer.reason_phrase}")
    if code not in (200, 206):
        hint = {401: " (a token is needed)", 403: " (no access)", 404: " (no such file)"}
        raise SourceError(
            f"{wanted.label} could not be fetched: {_host(wanted.url)} answered "
            f"{code}{hint.get(code, '')}."
        )
    if wanted.url.startswith("https://") and answer.url.scheme != "https":
        raise SourceError(f"{wanted.url} leads to {answer.url}, which is not encrypted; refused.")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise SourceError(f"{_host(wanted.url)} sends {wanted.label} compressed; refused.")


def _extent(answer: httpx.Response, have: int) -> tuple[int, int | None]:
    """Where the answer's bytes start in the file, and the file's size if it is said."""
    if answer.status_code == 206:
        match = _CONTENT_RANGE.match(answer.headers.get("content-range", ""))
        if match is None or int(match[1]) != have:
            raise SourceError(f"{_host(str(answer.url))} continues a download at the wrong byte.")
        return have, None if match[2] == "*" else int(match[2])
    length = answer.headers.get("content-length", "")
    return 0, int(length) if length.isascii() and length.isdigit() else None


def _verify(wanted: Wanted) -> None:
    size = _size(wanted.part)
    if wanted.size is not None and size != wanted.size:
        _discard(wanted)
        raise SourceError(f"{wanted.label} has {size} bytes; {wanted.size} were announced.")
    if wanted.sha256 is None:
        return
    with open(wanted.part, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted.sha256.lower():
        _discard(wanted)
        raise SourceError(
            f"{wanted.label} is not the announced file: its SHA-256 is {found}, "
            f"{wanted.sha256.lower()} was expected. It was deleted."
        )


def _discard(wanted: Wanted) -> None:
    wanted.part.unlink(missing_ok=True)
    wanted.note.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _host(url: str) -> str:
    try:
        return httpx.URL(url).host or url
    except httpx.InvalidURL:
        return url
