"""A prefix's tokens and blocks as a file: written whole or not at all, read with suspicion.

The file, all numbers little-endian::

    8 bytes   magic "gristkv" and the version, 1
    32 bytes  fingerprint of the model and of the blocks' layout
    8 bytes   tokens: n
    4 bytes   groups: g
    g times   8 bytes number of blocks, 8 bytes bytes of each
    4·n       token ids
    …         the blocks, group by group
    32 bytes  BLAKE2b of everything before
"""

from __future__ import annotations

import os
import stat
import struct
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import FormatError, ResourceError

MAGIC = b"gristkv\x01"
_HEAD = struct.Struct("<8s32sQI")
_GROUP = struct.Struct("<QQ")
_CHECK = 32


@dataclass(frozen=True)
class Snapshot:
    """Whole blocks of a prefix. ``blocks[g]`` are group g's last ones: all of them, or those
    that the token after the prefix looks at."""

    tokens: array[int]
    blocks: tuple[tuple[bytes, ...], ...]
    size: int = 0
    """Bytes of the file it was read from."""


def save(path: Path, snapshot: Snapshot, fingerprint: bytes) -> int:
    """Write a file in place of whatever ``path`` was; its bytes. Raises ResourceError."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in _parts(snapshot, fingerprint):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResourceError(f"'{path.name}' could not be written: {error.strerror}.") from error
    return size


def _parts(snapshot: Snapshot, fingerprint: bytes) -> list[bytes]:
    parts = [_HEAD.pack(MAGIC, fingerprint, len(snapshot.tokens), len(snapshot.blocks))]
    for blocks in snapshot.blocks:
        parts.append(_GROUP.pack(len(blocks), len(blocks[0]) if blocks else 0))
    parts.append(struct.pack(f"<{len(snapshot.tokens)}i", *snapshot.tokens))
    parts.extend(block for blocks in snapshot.blocks for block in blocks)
    check = blake2b(digest_size=_CHECK)
    for part in parts:
        check.update(part)
    return [*parts, check.digest()]


def load(path: Path, fingerprint: bytes, block_bytes: Sequence[int], most: int) -> Snapshot:
    """Read a file back; links are not followed, and nothing but a plain file is read.

    ``block_bytes`` are the engine's, ``most`` its most tokens. Raises FormatError for a file that
    is missing, damaged, or of another model.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError(f"'{path.name}' is not a plain file.")
            return _Reader(path.name, file, status.st_size).snapshot(fingerprint, block_bytes, most)
    except OSError as error:
        raise FormatError(f"'{path.name}' could not be read: {error.strerror}.") from error


class _Reader:
    """Reads one file from its start, keeping its checksum."""

    def __init__(self, name: str, file: BinaryIO, size: int) -> None:
        self._name = name
        self._file = file
        self._size = size
        self._sum = blake2b(digest_size=_CHECK)

    def snapshot(self, fingerprint: bytes, block_bytes: Sequence[int], most: int) -> Snapshot:
        """Everything, or FormatError. No size is trusted before the file's own bears it out."""
        magic, theirs, tokens, groups = _HEAD.unpack(self._take(_HEAD.size))
        if magic != MAGIC:
            raise FormatError(f"'{self._name}' is not a saved slot.")
        if theirs != fingerprint or groups != len(block_bytes):
            raise FormatError(
                f"'{self._name}' was saved with another model, KV type or context than is served."
            )
        if not 0 < tokens <= most or tokens % BLOCK_TOKENS:
            raise self._damaged()
        counts = self._counts(block_bytes, tokens)
        body = sum(n * size for n, size in zip(counts, block_bytes, strict=True))
        if self._size != _HEAD.size + groups * _GROUP.size + 4 * tokens + body + _CHECK:
            raise self._damaged()
        ids = array("i", struct.unpack(f"<{tokens}i", self._take(4 * tokens)))
        blocks = tuple(
            tuple(self._take(size) for _ in range(n))
            for n, size in zip(counts, block_bytes, strict=True)
        )
        if self._file.read(_CHECK) != self._sum.digest():
            raise self._damaged()
        return Snapshot(ids, blocks, self._size)

    def _counts(self, block_bytes: Sequence[int], tokens: int) -> list[int]:
        counts: list[int] = []
        for ours in block_bytes:
            count, size = _GROUP.unpack(self._take(_GROUP.size))
            if count > tokens // BLOCK_TOKENS or (count and size != ours):
                raise self._damaged()
            counts.append(count)
        return counts

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._damaged()
        self._sum.update(data)
        return data

    def _damaged(self) -> FormatError:
        return FormatError(f"'{self._name}' is damaged or was cut short.")
