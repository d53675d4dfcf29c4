"""One model file made of another: read, decoded and encoded a few rows at a time.

Rows go through a small pool of threads and are written in order; no more than a few chunks of
any tensor are in memory.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from gristmill import quant
from gristmill.convert.metadata import metadata_of
from gristmill.convert.recipes import Choice, Recipe, Shape
from gristmill.convert.tensors import Made, tensors_of
from gristmill.errors import FormatError, UsageError
from gristmill.files.gguf_write import Buffer, Planned, write_gguf
from gristmill.models import understand
from gristmill.quant.fit import FITS, fit
from gristmill.types import Checkpoint, RawTensor

F32 = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
Importance = Mapping[str, F32]
_CHUNK = 1 << 20
"""Weights encoded at a time."""


@dataclass(frozen=True)
class Written:
    """What was made: bytes of the file, bits a weight, and how many tensors of each encoding."""

    bytes: int
    bits_per_weight: float
    encodings: Mapping[str, int]


def write_model(
    checkpoint: Checkpoint,
    target: Path,
    recipe: Recipe,
    *,
    importance: Importance | None = None,
    embedding: str | None = None,
    output: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write the model as a GGUF file by ``recipe``.

    ``embedding``, ``output``: encodings of those two instead of the recipe's. Raises UsageError,
    what reading the model raises, and what writing a file raises.
    """
    for asked in (embedding, output):
        if asked is not None and asked not in FITS:
            raise UsageError(f"There is no encoding '{asked}'; {', '.join(FITS)} are written.")
    if target.is_dir():
        raise UsageError(f"{target} is a folder; the name of a file is wanted.")
    if target.exists() and target.samefile(checkpoint.path):
        raise UsageError(f"{target} is the model that is read; another name is wanted.")
    checkpoint = understand(checkpoint)
    made = tensors_of(checkpoint)
    choice = Choice(recipe, shape_of(checkpoint), importance is not None, embedding, output)
    metadata = metadata_of(checkpoint, recipe)
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, 16)) as pool:
        planned = [
            _plan(one, choice.encoding(one.name, one.shape), importance or {}, pool, checkpoint)
            for one in made
        ]
        size = write_gguf(target, metadata, planned, progress)
    encodings: dict[str, int] = {}
    for tensor in planned:
        encodings[tensor.encoding] = encodings.get(tensor.encoding, 0) + 1
    weights = sum(math.prod(t.shape) for t in planned)
    return Written(size, sum(t.nbytes for t in planned) * 8 / max(weights, 1), encodings)


def plain_recipe_name(checkpoint: Checkpoint) -> str:
    """The recipe that keeps what a model's matrices hold: that of most of its weights' bytes.

    Weights of several tensors decode to more than 16 bits; F16 is nearest.
    """
    sizes: dict[str, int] = {"f32": 0, "f16": 0, "bf16": 0}
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) > 1:
            kind = tensor.encoding if tensor.encoding in sizes else "f16"
            sizes[kind] += math.prod(tensor.shape)
    return max(sizes, key=sizes.__getitem__).upper()


def shape_of(checkpoint: Checkpoint) -> Shape:
    """What recipes look at."""
    architecture = checkpoint.metadata.get("general.architecture")

    def number(key: str, default: int) -> int:
        value: object = checkpoint.metadata.get(f"{architecture}.{key}", default)
        if isinstance(value, list | np.ndarray):
            items = np.asarray(cast("list[int]", value)).astype(int).tolist()
            value = max(items, default=default)
        return int(cast("int", value)) if isinstance(value, int | np.integer) else default

    heads = number("attention.head_count", 1)
    return Shape(
        layers=number("block_count", 1),
        experts=number("expert_count", 0),
        heads_per_kv=heads // max(number("attention.head_count_kv", heads), 1),
        tied="output.weight" not in checkpoint.tensors,
    )


def _plan(
    made: Made,
    encoding: str,
    importance: Importance,
    pool: ThreadPoolExecutor,
    checkpoint: Checkpoint,
) -> Planned:
    if checkpoint.format == "gguf" and not _float_like(checkpoint.tensors[made.name]):
        encoding = checkpoint.tensors[made.name].encoding  # whole numbers stay what they are
    weights = importance.get(made.name)
    if weights is not None and weights.shape not in ((made.shape[-1],), made.shape[::2]):
        raise FormatError(
            f"The importance matrix has {weights.shape} numbers for tensor {made.name!r} of shape "
            f"{made.shape}."
        )

    def chunks() -> Iterator[Buffer]:
        waiting: deque[Future[Buffer]] = deque()
        for work in _works(made, encoding, weights):
            waiting.append(pool.submit(work))
            if len(waiting) > 8:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        for piece in made.pieces():
            checkpoint.release(piece)

    return Planned(made.name, encoding, made.shape, chunks)


def _float_like(tensor: RawTensor) -> bool:
    return not tensor.encoding.startswith(("i8", "i16", "i32", "i64"))


def _works(made: Made, encoding: str, weights: F32 | None) -> Iterator[Callable[[], Buffer]]:
    """The work of each chunk of rows, in order."""
    for number, piece in enumerate(_as_rows(made)):
        step = max(1, _CHUNK // max(piece.shape[-1], 1))
        each = max(1, math.prod(made.shape[-2:-1]))
        if weights is not None and weights.ndim == 2:
            step = max(1, math.gcd(step, each))  # rows of one expert have the same importance
        for start in range(0, piece.shape[0], step):
            rows = quant.rows(piece, start, min(start + step, piece.shape[0]))
            share = weights
            if weights is not None and weights.ndim == 2:
                share = weights[min(number + start // each, len(weights) - 1)]
            yield partial(_encoded, rows, encoding, made, share)


def _as_rows(made: Made) -> Iterator[RawTensor]:
    """The pieces as matrices whose rows are the new tensor's."""
    columns = made.shape[-1] if made.shape else 1
    for piece in made.pieces():
        if piece.parts:
            yield piece
        else:
            yield replace(piece, shape=(math.prod(piece.shape) // max(columns, 1), columns))


def _encoded(rows: RawTensor, encoding: str, made: Made, share: F32 | None) -> Buffer:
    if rows.encoding == encoding and not made.plus and not rows.parts:
        return rows.data.cast("B")
    if encoding not in FITS:
        raise FormatError(f"Tensor '{made.name}' cannot be written as {encoding}.")
    values = quant.decode(rows)
    if made.plus:
        values = values + np.float32(made.plus)
    try:
        packed = fit(encoding, values, share)
    except FormatError as error:
        raise FormatError(f"Tensor '{made.name}': {error}") from error
    if encoding == "f16" and np.isinf(packed.view("<f2")).any() and np.isfinite(values).all():
        raise FormatError(f"Tensor '{made.name}' has weights too large for f16; bf16 holds them.")
    return packed.reshape(-1).data
