"""Writing GGUF files: streamed tensor by tensor, and there only when they are whole.

The file is written beside its place under another name, and renamed when its last byte is on
disk; whatever goes wrong before leaves nothing behind. Version 3, little-endian.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from gristmill.errors import FormatError, ResourceError, SourceError
from gristmill.files.ggml_types import GGML_TYPES_BY_NAME
from gristmill.files.gguf_head import DEFAULT_ALIGNMENT

Buffer = bytes | memoryview

_VERSION = 3
_STRING, _ARRAY, _BOOL = 8, 9, 7
_U32, _I32, _F32, _U64, _I64 = 4, 5, 6, 10, 11
_OF_DTYPE = {
    "|u1": 0, "|i1": 1, "<u2": 2, "<i2": 3, "<u4": 4, "<i4": 5,
    "<f4": 6, "|b1": 7, "<u8": 10, "<i8": 11, "<f8": 12,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """A metadata value as another file has it: its type and its bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to be written: its bytes, row after row, come from ``chunks`` when it is its turn.

    ``shape`` is row-major, as everywhere here.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Buffer]]

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file. Raises FormatError if rows are not whole blocks."""
        kind = GGML_TYPES_BY_NAME[self.encoding]
        row = self.shape[-1] if self.shape else 1
        if row % kind.elements:
            raise FormatError(
                f"Tensor {self.name!r} has rows of {row} weights, which {self.encoding} cannot "
                f"store: its blocks hold {kind.elements}."
            )
        return int(np.prod(self.shape, dtype=object)) // kind.elements * kind.bytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[Planned],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a file and return its size. ``progress`` is told tensor bytes written, and of all.

    Metadata values are ``bool``, ``int``, ``float``, ``str``, lists of one of those, numpy
    vectors, or ``Kept``. Raises FormatError for a value that the format cannot hold,
    SourceError where the file cannot be written, ResourceError when the disk is full.
    """
    head, offsets = _head(metadata, tensors)
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror or error}.") from error
    part = Path(name)
    try:
        with os.fdopen(number, "wb", buffering=1 << 20) as file:
            file.write(head)
            _write_tensors(file, tensors, offsets, progress)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"The disk is full: {path} was not written.") from error
        raise SourceError(f"{path} cannot be written: {error.strerror or error}.") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return size


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _aligned(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _write_tensors(
    file: BinaryIO,
    tensors: Sequence[Planned],
    offsets: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> None:
    start = file.tell()
    total, done = sum(t.nbytes for t in tensors), 0
    for tensor, offset in zip(tensors, offsets, strict=True):
        file.write(bytes(start + offset - file.tell()))
        begun = file.tell()
        for chunk in tensor.chunks():
            file.write(chunk)
            if progress is not None:
                progress(done + file.tell() - begun, total)
        written = file.tell() - begun
        if written != tensor.nbytes:
            raise AssertionError(f"{tensor.name}: {written} bytes for {tensor.nbytes}")
        done += written
    file.write(bytes(_aligned(file.tell()) - file.tell()))


# -------------------------------------------------------------------- head


def _head(metadata: Mapping[str, object], tensors: Sequence[Planned]) -> tuple[bytes, list[int]]:
    """Everything before the tensors' bytes, padded, and each tensor's offset behind it."""
    values = {k: v for k, v in metadata.items() if k != "general.alignment"}
    out = bytearray(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(values)))
    for key, value in values.items():
        out += _text(key) + _value(key, value)
    offsets: list[int] = []
    at = 0
    for tensor in tensors:
        sizes = tuple(reversed(tensor.shape))
        kind = GGML_TYPES_BY_NAME[tensor.encoding]
        out += _text(tensor.name) + struct.pack("<I", len(sizes))
        out += struct.pack(f"<{len(sizes)}QIQ", *sizes, kind.id, at)
        offsets.append(at)
        at += _aligned(tensor.nbytes)
    out += bytes(_aligned(len(out)) - len(out))
    return bytes(out), offsets


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: object) -> bytes:
    """The type and the bytes of a metadata value."""
    if isinstance(value, Kept):
        return value.data
    if isinstance(value, np.ndarray):
        return struct.pack("<I", _ARRAY) + _vector(key, cast("np.ndarray[tuple[int]]", value))
    if isinstance(value, list | tuple):
        return struct.pack("<I", _ARRAY) + _list(key, cast("Sequence[object]", value))
    kind, data = _scalar(key, value)
    return struct.pack("<I", kind) + data


def _scalar(key: str, value: object) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, str):
        return _STRING, _text(value)
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    if isinstance(value, int):
        for kind, layout, low, high in (
            (_U32, "<I", 0, 2**32),
            (_I32, "<i", -(2**31), 2**31),
            (_U64, "<Q", 0, 2**64),
            (_I64, "<q", -(2**63), 2**63),
        ):
            if low <= value < high:
                return kind, struct.pack(layout, value)
    raise FormatError(f"The metadata {key!r} holds {value!r:.60}, which GGUF has no type for.")


def _vector(key: str, value: np.ndarray[tuple[int]]) -> bytes:
    kind = _OF_DTYPE.get(value.dtype.str)
    if kind is None or value.ndim != 1:
        raise FormatError(f"The metadata {key!r} is an array that GGUF has no type for.")
    return struct.pack("<IQ", kind, len(value)) + value.tobytes()


def _list(key: str, items: Sequence[object]) -> bytes:
    """The items' type, their number and they. Whole numbers in lists are int32, as is usual."""
    if items and all(isinstance(item, str) for item in items):
        body = b"".join(_text(cast("str", item)) for item in items)
        return struct.pack("<IQ", _STRING, len(items)) + body
    if any(not isinstance(item, bool | int | float) for item in items):
        raise FormatError(f"The metadata {key!r} is a list that GGUF has no type for.")
    dtype = "<i4"
    if items and all(isinstance(item, bool) for item in items):
        dtype = "|b1"
    elif any(isinstance(item, float) for item in items):
        dtype = "<f4"
    try:
        return _vector(key, np.array(items, dtype))
    except OverflowError:
        return _vector(key, np.array(items, "<i8"))
