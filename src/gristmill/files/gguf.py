"""GGUF files, versions 2 and 3, one file or split: mapped, never copied.

Format: ggml's ``docs/gguf.md``; the ``gguf`` package is the oracle in the tests.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gristmill.errors import FormatError, SourceError
from gristmill.files.gguf_head import Head, TensorEntry, read_head
from gristmill.files.mapped import closer, map_file, releaser
from gristmill.types import Checkpoint, RawTensor

_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Part:
    """One mapped file of a model."""

    path: Path
    buffer: mmap.mmap
    head: Head


def open_gguf(path: Path) -> Checkpoint:
    """Map a GGUF model and check it from end to end of its head.

    Any part of a split model opens the whole of it; its siblings must lie beside it. Tensor
    data is not read. Metadata numbers become ``int``/``float``/``bool``, strings ``str``
    (``surrogateescape``, see ``gguf_head``), string arrays ``list[str]``, number arrays
    read-only numpy vectors, nested arrays lists of those.

    Raises ``SourceError`` when a file cannot be read, ``FormatError`` when it is damaged or
    lies about itself, ``UnsupportedError`` when it is sound but not served.
    """
    parts = _open_parts(path)
    tensors: dict[str, RawTensor] = {}
    homes: dict[str, _Part] = {}
    for part in parts:
        for entry, start in _placed(part):
            if entry.name in tensors:
                raise FormatError(
                    f"{part.path} is damaged: the tensor name {entry.name!r} appears twice."
                )
            data = memoryview(part.buffer)[start : start + entry.nbytes]
            tensors[entry.name] = RawTensor(entry.name, entry.type.name, entry.shape, data)
            homes[entry.name] = part
    _check_tensor_total(parts, len(tensors))
    return Checkpoint(
        path=parts[0].path,
        format="gguf",
        metadata=parts[0].head.metadata,
        tensors=tensors,
        close=closer([part.buffer for part in parts], tensors.values()),
        release=_releaser(parts),
    )


def kept_metadata(path: Path) -> dict[str, bytes]:
    """The metadata of a GGUF file as its bytes: each value's type and the value.

    For a file made of it: the numbers keep the types that they had.
    """
    part = _open_part(path)
    kept = {key: part.buffer[start:end] for key, (start, end) in part.head.spans.items()}
    part.buffer.close()
    return kept


# ------------------------------------------------------------------ files


def _open_part(path: Path) -> _Part:
    buffer = map_file(path, "a GGUF file")
    return _Part(path, buffer, read_head(path, buffer))


# ------------------------------------------------------------------ splits


def _split_number(part: _Part, key: str, default: int) -> int:
    value = part.head.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{part.path} is damaged: {key} is {value!r}, not a count.")
    return value


def split_names(name: str) -> list[str]:
    """The file names of a split model, in order, from that of any part; else an empty list."""
    match = _SPLIT_NAME.match(name)
    count = int(match["count"]) if match else 0
    if match is None or not 1 <= int(match["part"]) <= count:
        return []
    return [f"{match['stem']}-{n + 1:05d}-of-{count:05d}.gguf" for n in range(count)]


def _open_parts(path: Path) -> Sequence[_Part]:
    """The file at ``path``, or all the files of the split model that it belongs to, in order."""
    opened = _open_part(path)
    count = _split_number(opened, "split.count", 1)
    if count <= 1:
        return [opened]
    names = split_names(path.name)
    if len(names) != count:
        raise FormatError(
            f"{path} says that it is one of {count} parts; the parts of a split model must be "
            f"named NAME-00001-of-{count:05d}.gguf and so on."
        )
    parts: list[_Part] = []
    for number, name in enumerate(names):
        part = opened if name == path.name else _open_sibling(path, name, count)
        if _split_number(part, "split.count", 1) != count:
            raise FormatError(f"{part.path} does not say that it is one of {count} parts.")
        if _split_number(part, "split.no", -1 if number else 0) != number:
            raise FormatError(
                f"{part.path} is part {number + 1} by its name but says split.no = "
                f"{part.head.metadata.get('split.no')!r}; {number} was expected."
            )
        parts.append(part)
    return parts


def _open_sibling(path: Path, name: str, count: int) -> _Part:
    sibling = path.with_name(name)
    if not sibling.exists():
        raise SourceError(f"{path} is one of {count} parts, but {sibling} is missing beside it.")
    return _open_part(sibling)


def _check_tensor_total(parts: Sequence[_Part], found: int) -> None:
    if len(parts) == 1:
        return
    claimed = _split_number(parts[0], "split.tensors.count", found)
    if claimed != found:
        raise FormatError(
            f"{parts[0].path} says that its {len(parts)} parts hold {claimed} tensors, "
            f"but they hold {found}."
        )


# ----------------------------------------------------------------- tensors


def _placed(part: _Part) -> list[tuple[TensorEntry, int]]:
    """Every tensor of a part with the file offset of its bytes, checked against the file.

    Offsets are aligned, inside the file, and no two tensors share a byte.
    """
    head = part.head
    end = len(part.buffer)
    spans: list[tuple[int, int, str]] = []
    placed: list[tuple[TensorEntry, int]] = []
    for entry in head.tensors:
        start = head.data_start + entry.offset
        if entry.offset % head.alignment:
            raise FormatError(
                f"{part.path} is damaged: tensor {entry.name!r} lies at offset {entry.offset}, "
                f"which is not a multiple of the alignment {head.alignment}."
            )
        if entry.nbytes > 0 and start + entry.nbytes > end:
            raise FormatError(
                f"{part.path} is cut short or damaged: tensor {entry.name!r} ends at byte "
                f"{start + entry.nbytes}, but the file has {end}."
            )
        if entry.nbytes:
            spans.append((start, start + entry.nbytes, entry.name))
        placed.append((entry, start if entry.nbytes else end))
    spans.sort()
    for before, after in pairwise(spans):
        if after[0] < before[1]:
            raise FormatError(
                f"{part.path} is damaged: tensors {before[2]!r} and {after[2]!r} overlap."
            )
    return placed


def _releaser(parts: Sequence[_Part]) -> Callable[[RawTensor], None]:
    spans = {
        entry.name: (part.buffer, start, entry.nbytes)
        for part in parts
        for entry, start in _placed(part)
    }
    release = releaser(spans)
    return lambda tensor: release(tensor.name)
