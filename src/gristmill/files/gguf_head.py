"""The head of a GGUF file: its counts, its metadata, its tensor directory.

The file is hostile until proven otherwise: every count, length and offset is compared with
what is left of the file before a byte of it is used, and Python's integers do not overflow.
Nothing is allocated from a number in the file, only from bytes that are there.

Strings: the format says UTF-8, but token lists hold pieces that are not. They are decoded
with ``surrogateescape``, which loses nothing: ``s.encode("utf-8", "surrogateescape")`` gives
the file's bytes back.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gristmill.errors import FormatError, UnsupportedError
from gristmill.files.ggml_types import GGML_TYPES, RETIRED_TYPES, GgmlType

MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 1_024
MAX_DIMS = 4
MAX_DIM = 2**63 - 1
MAX_DEPTH = 4
MAX_TENSORS = 1 << 20
MAX_KEYS = 1 << 16
MAX_HEAD_BYTES = 1 << 30
"""Most bytes in front of the tensor data. The largest heads known have about 2**25."""
MAX_ITEMS = 1 << 25
"""Most strings and nested arrays of one file, so that a file cannot ask for many times its
own size in Python objects. The largest vocabularies known, with merges, hold about 2**19."""

DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING = 8
_ARRAY = 9
_UINT32 = 4

# Value type id → (name, struct of a scalar, numpy type of an array).
_NUMBERS: dict[int, tuple[str, struct.Struct, str]] = {
    0: ("uint8", struct.Struct("<B"), "<u1"),
    1: ("int8", struct.Struct("<b"), "<i1"),
    2: ("uint16", struct.Struct("<H"), "<u2"),
    3: ("int16", struct.Struct("<h"), "<i2"),
    4: ("uint32", _U32, "<u4"),
    5: ("int32", struct.Struct("<i"), "<i4"),
    6: ("float32", struct.Struct("<f"), "<f4"),
    7: ("bool", struct.Struct("<B"), "<u1"),
    10: ("uint64", _U64, "<u8"),
    11: ("int64", struct.Struct("<q"), "<i8"),
    12: ("float64", struct.Struct("<d"), "<f8"),
}
_BOOL = 7


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A line of the tensor directory. ``offset`` counts from the start of the data section."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    """Row-major: the reverse of the order in the file."""
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """Everything in front of the tensor data. ``data_start`` is the data section's offset."""

    version: int
    metadata: dict[str, object]
    tensors: list[TensorEntry]
    alignment: int
    data_start: int
    spans: dict[str, tuple[int, int]]
    """Where in the file each metadata value lies, its type before it: first byte, end."""


class _Cursor:
    """Walks over the mapped file; a read past its end is a ``FormatError``."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.end = min(self.size, MAX_HEAD_BYTES)
        self.pos = 0
        self.items = 0

    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.path} is damaged: {what}.")

    def need(self, nbytes: int, what: str) -> int:
        """Step over ``nbytes`` and return where they start."""
        start = self.pos
        if nbytes > self.end - start:
            raise self.too_long(f"{what} at byte {start} needs {nbytes} bytes")
        self.pos = start + nbytes
        return start

    def too_long(self, what: str) -> FormatError:
        if self.end < self.size:
            return self.fail(f"{what}, but no head may be longer than {self.end} bytes")
        return self.fail(f"{what}, but the file ends at {self.end}")

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.need(8, what))[0])

    def raw_string(self, what: str, limit: int | None = None) -> bytes:
        length = self.u64(what)
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long; at most {limit} are allowed")
        start = self.need(length, what)
        return self.buffer[start : start + length]

    def name(self, what: str, limit: int) -> str:
        """A string that must be readable: keys and tensor names."""
        raw = self.raw_string(what, limit)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8 ({raw[:40]!r})") from None

    def count_items(self, count: int, what: str) -> None:
        """Account for ``count`` Python objects that an array asks for."""
        self.items += count
        if self.items > MAX_ITEMS:
            raise self.fail(f"its metadata arrays hold more than {MAX_ITEMS} strings with {what}")


def read_head(path: Path, buffer: mmap.mmap) -> Head:
    """Read and check the head of the mapped GGUF file ``buffer``.

    Raises ``FormatError`` for damage, ``UnsupportedError`` for big-endian files, versions
    other than 2 and 3 and unknown tensor types. ``path`` is only used to name the file.
    """
    cur = _Cursor(path, buffer)
    version = _read_version(cur)
    tensor_count = cur.u64("the tensor count")
    key_count = cur.u64("the metadata count")
    if tensor_count > min(MAX_TENSORS, cur.end // 24):
        raise cur.fail(f"it claims {tensor_count} tensors, more than it can hold")
    if key_count > min(MAX_KEYS, cur.end // 13):
        raise cur.fail(f"it claims {key_count} metadata entries, more than it can hold")
    metadata: dict[str, object] = {}
    spans: dict[str, tuple[int, int]] = {}
    alignment = DEFAULT_ALIGNMENT
    for _ in range(key_count):
        key = cur.name("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise cur.fail(f"the metadata key {key!r} appears twice")
        start = cur.pos
        kind = cur.u32(f"the type of metadata {key!r}")
        metadata[key] = _read_value(cur, kind, f"metadata {key!r}")
        spans[key] = (start, cur.pos)
        if key == "general.alignment":
            alignment = _checked_alignment(cur, kind, metadata[key])
    tensors = [_read_tensor(cur) for _ in range(tensor_count)]
    data_start = -(-cur.pos // alignment) * alignment
    return Head(version, metadata, tensors, alignment, data_start, spans)


def _read_version(cur: _Cursor) -> int:
    """Check the magic and the version; tell the neighbours of GGUF apart."""
    if cur.end == 0:
        raise FormatError(f"{cur.path} is empty (0 bytes); a GGUF file was expected.")
    magic = bytes(cur.buffer[:4])
    if magic == b"FUGG":
        raise _big_endian(cur.path)
    if magic in (b"lmgg", b"tjgg", b"fmgg", b"algg"):
        raise UnsupportedError(
            f"{cur.path} is a GGML file from before GGUF; convert the original model again."
        )
    if magic != b"GGUF":
        raise FormatError(
            f"{cur.path} is not a GGUF file: it starts with {magic!r} instead of b'GGUF'."
        )
    cur.pos = 4
    version = cur.u32("the version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version != 0:
        raise _big_endian(cur.path)
    raise UnsupportedError(f"{cur.path} is GGUF version {version}; versions 2 and 3 are supported.")


def _big_endian(path: Path) -> UnsupportedError:
    return UnsupportedError(
        f"{path} is a big-endian GGUF file; only little-endian files are supported."
    )


def _checked_alignment(cur: _Cursor, kind: int, value: object) -> int:
    if kind != _UINT32 or not isinstance(value, int):
        raise cur.fail("general.alignment is not a uint32")
    if value < 8 or value & (value - 1):
        raise cur.fail(f"general.alignment is {value}; it must be a power of two from 8 up")
    return value


def _read_value(cur: _Cursor, kind: int, what: str) -> object:
    """A metadata value: bool, int, float, str, or an array (see ``_read_array``)."""
    if kind == _STRING:
        return cur.raw_string(what).decode("utf-8", "surrogateescape")
    if kind == _ARRAY:
        return _read_array(cur, what, 1)
    number = _NUMBERS.get(kind)
    if number is None:
        raise cur.fail(f"{what} has the unknown value type {kind}")
    layout = number[1]
    value = layout.unpack_from(cur.buffer, cur.need(layout.size, what))[0]
    return bool(value) if kind == _BOOL else value


def _read_array(cur: _Cursor, what: str, depth: int) -> object:
    """An array: ``list[str]``, a read-only numpy vector, or a list of such arrays."""
    kind = cur.u32(what)
    count = cur.u64(what)
    if kind == _STRING:
        return _read_strings(cur, count, what)
    if kind == _ARRAY:
        if depth >= MAX_DEPTH:
            raise cur.fail(f"{what} nests arrays more than {MAX_DEPTH} deep")
        if count > (cur.end - cur.pos) // 12:
            raise cur.fail(f"{what} claims {count} arrays, more than the file can hold")
        cur.count_items(count, what)
        return [_read_array(cur, what, depth + 1) for _ in range(count)]
    number = _NUMBERS.get(kind)
    if number is None:
        raise cur.fail(f"{what} is an array of the unknown value type {kind}")
    nbytes = count * number[1].size
    start = cur.need(nbytes, what)
    values = np.frombuffer(cur.buffer[start : start + nbytes], dtype=number[2])
    return values != 0 if kind == _BOOL else values


def _read_strings(cur: _Cursor, count: int, what: str) -> list[str]:
    """The hot loop of opening a model: a vocabulary has hundreds of thousands of strings."""
    if count > (cur.end - cur.pos) // 8:
        raise cur.fail(f"{what} claims {count} strings, more than the file can hold")
    cur.count_items(count, what)
    buffer = cur.buffer
    end = cur.end
    length_at = _U64.unpack_from
    pos = cur.pos
    found: list[str] = []
    append = found.append
    for _ in range(count):
        start = pos + 8
        if start > end:
            raise cur.too_long(f"string {len(found)} of {what} runs past byte {end}")
        pos = start + length_at(buffer, pos)[0]
        if pos > end:
            raise cur.too_long(f"string {len(found)} of {what} runs past byte {end}")
        append(buffer[start:pos].decode("utf-8", "surrogateescape"))
    cur.pos = pos
    return found


def _read_tensor(cur: _Cursor) -> TensorEntry:
    name = cur.name("a tensor name", MAX_NAME_BYTES)
    what = f"the description of tensor {name!r}"
    dims = cur.u32(what)
    if dims > MAX_DIMS:
        raise cur.fail(f"tensor {name!r} has {dims} dimensions; at most {MAX_DIMS} are allowed")
    sizes = [cur.u64(what) for _ in range(dims)]
    type_id = cur.u32(what)
    offset = cur.u64(what)
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        retired = RETIRED_TYPES.get(type_id)
        raise UnsupportedError(
            f"{cur.path}: tensor {name!r} is encoded as {retired}, which ggml has withdrawn; "
            "convert the original model again."
            if retired
            else f"{cur.path}: tensor {name!r} has the unknown type {type_id}; known are "
            f"{', '.join(t.name for t in GGML_TYPES.values())}."
        )
    elements = _checked_elements(cur, name, sizes)
    row = sizes[0] if sizes else 1
    if row % kind.elements:
        raise cur.fail(
            f"tensor {name!r} has rows of {row} values, which {kind.name} cannot store: "
            f"its blocks hold {kind.elements}"
        )
    nbytes = elements // kind.elements * kind.bytes
    return TensorEntry(name, kind, tuple(reversed(sizes)), offset, nbytes)


def _checked_elements(cur: _Cursor, name: str, sizes: list[int]) -> int:
    """The product of the sizes; no product of any of them may leave 63 bits."""
    elements = 1
    bound = 1
    for size in sizes:
        elements *= size
        bound *= max(size, 1)
    if bound > MAX_DIM:
        raise cur.fail(f"tensor {name!r} of shape {sizes} has more than 2**63 values")
    return elements
