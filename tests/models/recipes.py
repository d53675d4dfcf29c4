"""Tiny models without a file: weights made of a generator, tensors by their recipes.

``tests/golden/models/families/NAME.json`` (written by ``make_families.py`` there) holds what
``config.json`` says, the names and shapes of a folder's tensors, what llama.cpp's converter
writes for them, and the logits of ``transformers``; the numbers themselves are made here, by
PCG64's raw stream, which numpy keeps as it is.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.models import understand
from gristmill.types import Checkpoint, RawTensor

F32 = npt.NDArray[np.float32]

FOLDER = Path(__file__).parent.parent / "golden" / "models" / "families"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def values(name: str, shape: tuple[int, ...], spread: float, centre: float) -> F32:
    """Numbers of mean ``centre`` and standard deviation ``spread``, the same everywhere."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(int(np.prod(shape)))
    unit = (np.asarray(raw) >> np.uint64(40)).astype(np.float64) / (1 << 24)
    return ((unit - 0.5) * 12**0.5 * spread + centre).astype(np.float32).reshape(shape)


@dataclass(frozen=True)
class Golden:
    """A family's model as both kinds of file would have it, and what is right."""

    hf: Checkpoint
    gguf: Checkpoint | None
    ids: list[int]
    rows: list[int]
    logits: F32


def _checkpoint(kind: Any, metadata: dict[str, Any], tensors: dict[str, F32]) -> Checkpoint:
    raw = {
        name: RawTensor(name, "f32", data.shape, memoryview(data.tobytes()))
        for name, data in tensors.items()
    }
    return Checkpoint(FOLDER / "tiny", kind, metadata, raw, lambda: None, lambda tensor: None)


def cooked(recipe: list[Any], source: dict[str, F32]) -> F32:
    """A tensor of a GGUF file: [shape, how, argument, names], or [shape, "values", numbers].

    Of experts: "half" takes the first or second half of the last axis but one, "every" each second
    value of the last axis, from the argument on; "every" and "turned" swap the last two axes.
    """
    shape, how, argument = recipe[:3]
    if how == "values":
        return np.array(argument, np.float32).reshape(shape)
    data = np.concatenate([source[name] for name in recipe[3]])
    if how == "plus":
        data = data + np.float32(argument)
    elif how == "rows":
        data = data[argument]
    elif how == "columns":
        data = data[:, argument]
    elif how == "pairs":
        halves = data.reshape(argument, 2, data.shape[0] // argument // 2, -1)
        data = halves.swapaxes(1, 2)
    elif how == "half":
        data = np.split(data, 2, axis=-2)[argument]
    elif how == "every":
        data = data[..., argument::2]
    if how in ("every", "turned") and data.ndim > 2:
        data = data.swapaxes(-1, -2)
    return data.reshape(shape)


def golden(name: str) -> Golden:
    """One family."""
    data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    tensors = {n: values(n, tuple(shape), a, b) for n, shape, a, b in data["tensors"]}
    hf = understand(_checkpoint("hf", {"hf.config": data["config"]}, tensors))
    gguf = None
    if data["gguf"]:
        made = {n: cooked(recipe, tensors) for n, recipe in data["gguf"]["tensors"].items()}
        gguf = _checkpoint("gguf", data["gguf"]["metadata"], made)
    logits = np.array(data["logits"], np.float32)
    return Golden(hf, gguf, data["ids"], data["rows"], logits)
