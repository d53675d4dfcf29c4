"""Mapped files: read-only maps, and the pages of them given back when they have been read."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gristmill.errors import FormatError, SourceError
from gristmill.types import RawTensor

Span = tuple[mmap.mmap, int, int]
"""A stretch of a map: the map, its first byte, its number of bytes."""


def map_file(path: Path, expected: str) -> mmap.mmap:
    """Map a whole file read-only; ``expected`` says in the error what it should have been.

    Raises ``SourceError`` for anything but a readable regular file, ``FormatError`` for an
    empty one.
    """
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a NUL in the name
        raise SourceError(f"{str(path)!r} is not a file name: {error}.") from error
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise SourceError(f"{path} is a directory; {expected} was expected.")
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(f"{path} is not a regular file; {expected} was expected.")
        if info.st_size == 0:
            raise FormatError(f"{path} is empty (0 bytes); {expected} was expected.")
        return mmap.mmap(fd, info.st_size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise SourceError(f"{path} cannot be mapped: {error.strerror or error}.") from error
    finally:
        os.close(fd)


def releaser(spans: Mapping[str, Span]) -> Callable[[str], None]:
    """A function that gives the pages of a named stretch back; the next read maps them again."""
    page = mmap.PAGESIZE
    whole: dict[str, Span] = {}
    for name, (buffer, start, size) in spans.items():
        first = -(-start // page) * page
        last = (start + size) // page * page
        if last > first:
            whole[name] = (buffer, first, last - first)
    advice = getattr(mmap, "MADV_DONTNEED", None)

    def release(name: str) -> None:
        span = whole.get(name)
        if advice is None or span is None or span[0].closed:
            return
        span[0].madvise(advice, span[1], span[2])

    return release


def closer(buffers: Iterable[mmap.mmap], tensors: Iterable[RawTensor]) -> Callable[[], None]:
    """A function that drops the maps. A view still in use keeps its own map alive."""
    kept, views = list(buffers), list(tensors)

    def close() -> None:
        for tensor in views:
            try:
                tensor.data.release()
            except BufferError:  # an array still looks through it
                continue
        for buffer in kept:
            try:
                buffer.close()
            except BufferError:  # unmapped when its last view is gone
                continue

    return close
