"""Safetensors files: a JSON head that says where each tensor lies, then the bytes. Mapped.

Format: huggingface/safetensors, README "Format": 8 bytes with the head's length, the head,
the data; offsets count from the data's start, no two tensors overlap and no byte is left over.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gristmill.errors import FormatError, UnsupportedError
from gristmill.files.mapped import Span, map_file
from gristmill.types import RawTensor

MAX_HEAD = 100_000_000
"""Bytes of a head; the library's own limit."""
MAX_DIMS = 16
MAX_SIZE = 1 << 48

# The file's names of element types → encodings, bytes of an element.
_TYPES = {
    "F64": ("f64", 8),
    "F32": ("f32", 4),
    "F16": ("f16", 2),
    "BF16": ("bf16", 2),
    "I64": ("i64", 8),
    "I32": ("i32", 4),
    "I16": ("i16", 2),
    "I8": ("i8", 1),
    "U64": ("u64", 8),
    "U32": ("u32", 4),
    "U16": ("u16", 2),
    "U8": ("u8", 1),
    "BOOL": ("u8", 1),
    "F8_E4M3": ("f8_e4m3", 1),
    "F8_E5M2": ("f8_e5m2", 1),
    "F8_E8M0": ("f8_e8m0", 1),
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One mapped file: its tensors, where they lie, and the texts of ``__metadata__``."""

    path: Path
    buffer: mmap.mmap
    tensors: dict[str, RawTensor]
    spans: dict[str, Span]
    metadata: dict[str, str]


def open_shard(path: Path) -> Shard:
    """Map a safetensors file, its head checked from end to end. No tensor's data is read.

    Raises ``SourceError`` when it cannot be read, ``FormatError`` when it is damaged or cut
    short, ``UnsupportedError`` for an element type that is not known.
    """
    buffer = map_file(path, "a safetensors file")
    head, start = _head(path, buffer)
    metadata = head.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise FormatError(f"{path} is damaged: '__metadata__' is not an object of texts.")
    tensors: dict[str, RawTensor] = {}
    spans: dict[str, Span] = {}
    for name, entry in head.items():
        encoding, shape, first, last = _entry(path, name, entry, len(buffer) - start)
        data = memoryview(buffer)[start + first : start + last]
        tensors[name] = RawTensor(name, encoding, shape, data)
        spans[name] = (buffer, start + first, last - first)
    _check_cover(path, spans, start, len(buffer))
    texts = {str(k): str(v) for k, v in cast("dict[object, object]", metadata).items()}
    return Shard(path, buffer, tensors, spans, texts)


def _head(path: Path, buffer: mmap.mmap) -> tuple[dict[str, object], int]:
    size = int.from_bytes(buffer[:8], "little") if len(buffer) >= 8 else -1
    if not 2 <= size <= MAX_HEAD:
        raise FormatError(
            f"{path} is not a safetensors file: its head would have {size} bytes; 2 to "
            f"{MAX_HEAD} are allowed."
        )
    if 8 + size > len(buffer):
        raise FormatError(
            f"{path} is cut short: its head has {size} bytes, but the file only {len(buffer)}."
        )
    try:
        head: object = json.loads(buffer[8 : 8 + size], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is damaged: its head is not sound JSON ({str(error)[:120]})."
        ) from error
    if not isinstance(head, dict):
        raise FormatError(f"{path} is damaged: its head is not a JSON object.")
    return cast("dict[str, object]", head), 8 + size


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _entry(
    path: Path, name: str, entry: object, room: int
) -> tuple[str, tuple[int, ...], int, int]:
    """Encoding, shape, first and last offset of a tensor, all checked."""
    fields = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets):
        raise FormatError(
            f"{path} is damaged: tensor {name!r:.100} lacks a sound dtype, shape or data_offsets."
        )
    if dtype not in _TYPES:
        raise UnsupportedError(
            f"{path}: tensor {name!r:.100} has elements of type {dtype!r:.40}; known are "
            f"{', '.join(_TYPES)}."
        )
    encoding, width = _TYPES[dtype]
    sizes = tuple(cast("list[int]", shape))
    where = cast("list[int]", offsets)
    if len(where) != 2 or not 0 <= where[0] <= where[1] or len(sizes) > MAX_DIMS:
        raise FormatError(f"{path} is damaged: tensor {name!r:.100} lies at {where!r:.60}.")
    if where[1] > room:
        raise FormatError(
            f"{path} is cut short or damaged: tensor {name!r:.100} ends at byte {where[1]} of "
            f"the data, but there are {room}."
        )
    if math.prod(sizes) * width != where[1] - where[0]:
        raise FormatError(
            f"{path} is damaged: tensor {name!r:.100} of shape {sizes} in {dtype} takes "
            f"{math.prod(sizes) * width} bytes, but has {where[1] - where[0]}."
        )
    return encoding, sizes, where[0], where[1]


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_SIZE
        for n in cast("list[object]", value)
    )


def _check_cover(path: Path, spans: dict[str, Span], start: int, end: int) -> None:
    """Every byte of the data belongs to one tensor."""
    at, before = start, ""
    for first, size, name in sorted((s[1], s[2], name) for name, s in spans.items()):
        if first < at:
            raise FormatError(
                f"{path} is damaged: tensors {before!r:.100} and {name!r:.100} overlap."
            )
        if first > at:
            raise FormatError(
                f"{path} is damaged: {first - at} bytes before tensor {name!r:.100} belong to none."
            )
        at, before = first + size, name
    if at != end:
        raise FormatError(f"{path} is damaged: {end - at} bytes at its end belong to no tensor.")
