"""A model's tensors as GGUF has them, each still where it lies and encoded as it is.

Of a GGUF file they are its own. Of a folder the model says what must be done: rows of heads
paired, norms' one added, experts stacked, gate and up of experts parted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gristmill import models, quant
from gristmill.backends.ops import Part, Wanted
from gristmill.backends.parts import find_part
from gristmill.errors import UnsupportedError
from gristmill.models.families import FAMILIES
from gristmill.models.rope import ROPE_TENSORS
from gristmill.types import Checkpoint, RawTensor

_OTHERWISE = {"granitehybrid", "qwen35", "qwen35moe", "qwen3next"}
"""Whose folders have tensors in an order, or of axes, that GGUF has not."""
FROM_FOLDERS = (frozenset(FAMILIES) | {"gemma4", "lfm2"}) - _OTHERWISE
"""Architectures whose folders are known to come to the tensors that llama.cpp's converter makes."""


@dataclass(frozen=True)
class Made:
    """A tensor of the new file: ``pieces`` one after the other by rows, ``plus`` added."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[RawTensor]]
    plus: float = 0.0


def tensors_of(checkpoint: Checkpoint) -> list[Made]:
    """Every tensor of the model. Raises what reading the model raises."""
    if checkpoint.format == "gguf":
        return [_whole(tensor) for tensor in checkpoint.tensors.values()]
    architecture = str(checkpoint.metadata["general.architecture"])
    if architecture not in FROM_FOLDERS:
        raise UnsupportedError(
            f"Folders of architecture '{architecture}' cannot be written as GGUF; those of "
            f"{', '.join(sorted(FROM_FOLDERS))} can."
        )
    model = models.build(checkpoint)
    made: dict[str, Made] = {}
    for wanted in model.wanted():
        for one in _of(wanted, checkpoint):
            made[one.name] = one
    used = {part.tensor for wanted in model.wanted() for part in wanted.parts}
    for name, tensor in checkpoint.tensors.items():
        if name not in used and (name in ROPE_TENSORS or name.endswith("_scale.weight")):
            made[name] = replace(
                _whole(tensor), name=name
            )  # numbers that the model reads by itself
    return list(made.values())


def _whole(tensor: RawTensor) -> Made:
    return Made(tensor.name, tensor.shape, lambda: iter((tensor,)))


def _of(wanted: Wanted, checkpoint: Checkpoint) -> Iterator[Made]:
    experts = re.fullmatch(r"(blk\.\d+\.ffn_)(gate_up|down)(_exps\.)(weight|bias)", wanted.name)
    if experts and (experts[4] == "weight" or "_exps" in wanted.parts[0].tensor):
        yield from _experts(wanted, checkpoint, experts)
    elif wanted.name.endswith("ffn_gate_up_shexp.weight") and len(wanted.parts) == 1:
        part, rows = wanted.parts[0], wanted.shape[0] // 2
        for i, name in enumerate(("gate", "up")):
            cut = replace(part, rows=(i * rows, (i + 1) * rows))
            named = wanted.name.replace("gate_up", name)
            yield _made(named, (rows, *wanted.shape[1:]), wanted, (cut,), checkpoint)
    elif re.fullmatch(r".*_norm\.\d+\.weight", wanted.parts[0].tensor):
        count = len(wanted.parts)  # a norm of each head
        shape = (count, wanted.shape[0] // count)
        yield _made(wanted.name, shape, wanted, wanted.parts, checkpoint)
    else:
        for part in wanted.parts:
            if part.rows is not None:
                raise UnsupportedError(f"Tensor '{part.tensor}' cannot be written as GGUF has it.")
            shape = checkpoint.tensors[part.tensor].shape
            shape = shape[-1:] if part.row else shape
            if part.tensor.endswith("shortconv.conv.weight"):
                shape = (shape[0], shape[-1])
            yield _made(part.tensor, shape, wanted, (part,), checkpoint)


def _made(
    name: str,
    shape: tuple[int, ...],
    wanted: Wanted,
    parts: tuple[Part, ...],
    checkpoint: Checkpoint,
) -> Made:
    def pieces() -> Iterator[RawTensor]:
        for part in parts:
            yield find_part(wanted, part, checkpoint.tensors)

    return Made(name, shape, pieces, wanted.plus)


def _experts(wanted: Wanted, checkpoint: Checkpoint, name: re.Match[str]) -> Iterator[Made]:
    """Gate, up and down of all experts, (E, N, K) each; or their biases, (E, N)."""
    first = wanted.parts[0].tensor
    router = checkpoint.tensors[f"{name[1]}gate_inp.weight"]
    count, bias = router.shape[0], name[4] == "bias"
    rows = wanted.shape[0] // count if bias else wanted.shape[1]
    columns = () if bias else wanted.shape[2:]
    if name[2] == "down":
        shape = (count, rows, *columns)
        yield _made(wanted.name, shape, wanted, wanted.parts, checkpoint)
        return
    fused = "gate_up" in first
    for i, half in enumerate(("gate", "up")):
        shape = (count, rows // 2, *columns)
        parts = wanted.parts if fused else wanted.parts[i::2]
        made = _made(f"{name[1]}{half}{name[3]}{name[4]}", shape, wanted, parts, checkpoint)
        yield _half(made, i, rows // 2) if fused else made


def _half(made: Made, which: int, rows: int) -> Made:
    """Of each piece its first or second half of the rows."""

    def pieces() -> Iterator[RawTensor]:
        for piece in made.pieces():
            one = piece
            if len(made.shape) == 2:  # biases: a vector, whatever axes it had
                size = 1
                for n in piece.shape:
                    size *= n
                one = replace(piece, shape=(size,))
            yield quant.rows(one, which * rows, (which + 1) * rows)

    return replace(made, pieces=pieces)
