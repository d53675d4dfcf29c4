"""Blocks on disk, so that a beginning which many prompts share survives a restart.

A folder holds one file for each block, named by the block's digest and the groups that it has::

    <digest, 32 hex digits>-<groups, a bit each, hex>
        8 bytes   magic "gristblk" with the version in the last byte
        32 bytes  fingerprint of the model and of the blocks' layout
        128 bytes the block's 32 token ids, little-endian
        …         the blocks of the groups, in order
        32 bytes  SHA-256 of everything before

A file is written under another name and renamed, so one that has a good name was written to its
end by its process; a machine that failed leaves files whose checksum is wrong, and they are
dropped when they are met. ``key`` holds the key of the digests; ``lock`` keeps a second server
out. When the folder is full the least recently used go (by the files' times).
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import RLock

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.errors import ResourceError, UsageError

MAGIC = b"gristbl\x01"
_HEAD = len(MAGIC) + 32 + 4 * BLOCK_TOKENS
_CHECK = 32
KEY_BYTES = 16


class Shelf:
    """The folder of one model in ``folder``, at most ``limit`` bytes of all its models.

    ``block_bytes`` are per group. Raises UsageError if another server uses it, ResourceError if
    it cannot be written. ``put`` may be called on another thread than the rest.
    """

    def __init__(
        self, folder: Path, fingerprint: bytes, block_bytes: Sequence[int], limit: int
    ) -> None:
        self._fingerprint = fingerprint
        self._block_bytes = tuple(block_bytes)
        self._limit = limit
        self._folder = folder / fingerprint.hex()[:32]
        self._guard = RLock()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self._folder / "lock")
            self.key = _key(self._folder / "key")
            self._files = self._scan(folder)
        except OSError as error:
            raise ResourceError(f"'{folder}' cannot hold a cache: {error.strerror}.") from error
        self.damaged = 0
        """Files that were dropped because their checksum was wrong."""

    def groups(self, digest: bytes) -> int:
        """Which groups' blocks are there, a bit each; 0: none."""
        with self._guard:
            return self._files.get(digest, (0, 0))[0]

    def read(self, digest: bytes, tokens: bytes) -> dict[int, memoryview] | None:
        """The blocks of a digest by their groups, as views of the mapped file; None if there is
        none that is whole and of these tokens."""
        mask = self.groups(digest)
        if not mask:
            return None
        path = self._path(digest, mask)
        try:
            with path.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):
            self._drop(digest)
            return None
        sizes = [size for group, size in enumerate(self._block_bytes) if mask >> group & 1]
        head = MAGIC + self._fingerprint + tokens
        good = (
            len(data) == _HEAD + sum(sizes) + _CHECK
            and bytes(data[:_HEAD]) == head
            and hashlib.sha256(data[:-_CHECK]).digest() == bytes(data[-_CHECK:])
        )
        if not good:
            self.damaged += 1
            self._drop(digest)
            return None
        blocks: dict[int, memoryview] = {}
        at = _HEAD
        for group, size in enumerate(self._block_bytes):
            if mask >> group & 1:
                blocks[group] = data[at : at + size]
                at += size
        return blocks

    def touch(self, digests: Sequence[bytes]) -> None:
        """They are used; the last of them is to be kept longest."""
        for digest in digests:
            with self._guard:
                mask = self.groups(digest)
                if not mask:
                    continue
                self._files.move_to_end(digest)
            try:
                os.utime(self._path(digest, mask))
            except OSError:
                self._drop(digest)

    def put(self, digest: bytes, tokens: bytes, blocks: Sequence[bytes | None]) -> None:
        """Write one block, a part for each group that has it, and make room for it. Raises
        OSError."""
        mask = sum(1 << group for group, part in enumerate(blocks) if part is not None)
        parts = [MAGIC, self._fingerprint, tokens, *(part for part in blocks if part is not None)]
        check = hashlib.sha256()
        for part in parts:
            check.update(part)
        size = sum(map(len, parts)) + _CHECK
        with self._guard:
            if size > self._limit or digest in self._files:
                return
            while self._files and self._used + size > self._limit:
                self._drop(next(iter(self._files)))
        path = self._path(digest, mask)
        part_path = path.with_name(f".{path.name}.part")
        try:
            with part_path.open("wb") as file:
                file.writelines([*parts, check.digest()])
            part_path.replace(path)
        except BaseException:
            part_path.unlink(missing_ok=True)
            raise
        with self._guard:
            self._files[digest] = (mask, size)
            self._used += size

    def close(self) -> None:
        """Let another server have it."""
        os.close(self._lock)

    def _path(self, digest: bytes, mask: int) -> Path:
        return self._folder / f"{digest.hex()}-{mask:x}"

    def _drop(self, digest: bytes) -> None:
        with self._guard:
            mask, size = self._files.pop(digest, (0, 0))
            self._used -= size
        if mask:
            self._path(digest, mask).unlink(missing_ok=True)

    def _scan(self, folder: Path) -> OrderedDict[bytes, tuple[int, int]]:
        """What is there, the least recently used first. Other models' files count as used, and
        go first if there is too much."""
        self._used = 0
        mine: list[tuple[float, bytes, int, int]] = []
        others: list[tuple[float, Path, int]] = []
        for path in folder.glob("*/*"):
            if path.name.startswith(".") and path.parent == self._folder:
                path.unlink(missing_ok=True)  # a write that was cut short
                continue
            name, _, groups = path.name.partition("-")
            if len(name) != 32 or not groups or not path.is_file():
                continue
            status = path.stat()
            self._used += status.st_size
            if path.parent != self._folder:
                others.append((status.st_mtime, path, status.st_size))
                continue
            try:
                digest, mask = bytes.fromhex(name), int(groups, 16)
            except ValueError:
                continue
            mine.append((status.st_mtime, digest, mask, status.st_size))
        for _, path, size in sorted(others, key=lambda each: each[0]):
            if self._used <= self._limit:
                break
            path.unlink(missing_ok=True)
            self._used -= size
        mine.sort()
        return OrderedDict((digest, (mask, size)) for _, digest, mask, size in mine)


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise UsageError(
            f"'{path.parent.parent}' is in use by another server with the same model."
        ) from error
    return handle


def _key(path: Path) -> bytes:
    """The key of the digests, made at the first start. Under the lock, so nobody else makes one."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        key = os.urandom(KEY_BYTES)
        part = path.with_name(".key.part")
        part.write_bytes(key)
        part.chmod(0o600)
        part.replace(path)
    return key
