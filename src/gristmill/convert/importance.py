"""Importance matrices: how much each input feature of each matrix mattered on some text.

Two kinds of files, both llama.cpp's: GGUF with ``NAME.in_sum2`` and ``NAME.counts``, and the older
binary one: a count of entries; of each the length of its name, the name, a number of calls, a
number of values and the values as float32, sums over the calls.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError, SourceError
from gristmill.files.gguf import open_gguf
from gristmill.quant import decode

F32 = npt.NDArray[np.float32]
_MAX_BYTES = 1 << 32
_MAX_NAME = 1 << 10


def read_importance(path: Path) -> Mapping[str, F32]:
    """Tensor name → (K,), or (E, K) of experts. Raises SourceError, FormatError."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic != b"GGUF":
                if path.stat().st_size > _MAX_BYTES:
                    raise FormatError(f"{path} is too large for an importance matrix.")
                return _read_old(path, magic + file.read())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _read_gguf(path)


def _read_gguf(path: Path) -> Mapping[str, F32]:
    checkpoint = open_gguf(path)
    found: dict[str, F32] = {}
    for key, tensor in checkpoint.tensors.items():
        if not key.endswith(".in_sum2"):
            continue
        name = key.removesuffix(".in_sum2")
        counts = checkpoint.tensors.get(f"{name}.counts")
        if counts is None:
            raise FormatError(f"{path} has {key!r} but no '{name}.counts'.")
        sums = decode(tensor)
        sums = sums.reshape(-1, sums.shape[-1] if sums.ndim else 1)
        times = decode(counts).reshape(-1)
        if len(times) not in (1, len(sums)):
            raise FormatError(f"{path}: '{name}.counts' does not fit {key!r}.")
        found[name] = _averages(path, name, sums, times[:, None])
    checkpoint.close()
    if not found:
        raise FormatError(f"{path} is a GGUF file, but no importance matrix.")
    return found


def _averages(path: Path, name: str, sums: F32, times: F32) -> F32:
    if not np.isfinite(sums).all() or (sums < 0).any() or not np.isfinite(times).all():
        raise FormatError(f"{path}: the importance of {name!r} holds what is no square.")
    averages = np.where(times > 0, sums / np.maximum(times, 1), np.float32(1))
    return averages[0] if len(averages) == 1 else averages.astype(np.float32)


def _read_old(path: Path, data: bytes) -> Mapping[str, F32]:
    found: dict[str, F32] = {}
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise FormatError(f"{path} is cut short, or no importance matrix.")
        at += 4
        return int(struct.unpack_from("<i", data, at - 4)[0])

    def take(size: int) -> bytes:
        nonlocal at
        if size < 0 or at + size > len(data):
            raise FormatError(f"{path} is cut short, or no importance matrix.")
        at += size
        return data[at - size : at]

    for _ in range(max(number(), 0)):
        length = number()
        if length > _MAX_NAME:
            raise FormatError(f"{path} is no importance matrix: it has a name of {length} bytes.")
        name = take(length).decode("utf-8", "replace")
        calls = number()
        values = np.frombuffer(take(4 * number()), "<f4")
        found[name] = _averages(
            path, name, values[None], np.full((1, 1), max(calls, 1), np.float32)
        )
    if not found:
        raise FormatError(f"{path} is no importance matrix: it has no entries.")
    return found
