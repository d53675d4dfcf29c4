"""Small forwards on the CPU back end, beside the reference: weights, steps, poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gristmill.backends.cpu.backend import CpuBackend, CpuProgram
from gristmill.backends.cpu.state import CpuMemory
from gristmill.backends.ops import BLOCK_TOKENS, Batch, Ops, Part, Wanted, Weight, X
from gristmill.backends.reference import ReferenceBackend
from gristmill.quant import ENCODINGS
from gristmill.types import RawTensor, StateSpec
from tests.quant.blocks import random_blocks

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

Forward = Callable[[Ops, Mapping[str, Weight]], X]


@contextmanager
def opened(threads: int = 2) -> Generator[CpuBackend]:
    """A CPU back end on the current level, closed afterwards."""
    backend = CpuBackend(threads)
    try:
        yield backend
    finally:
        backend.close()


def raw(name: str, values: npt.ArrayLike) -> RawTensor:
    """A float32 tensor as a file would hold it."""
    array = np.array(values, dtype="<f4", order="C")
    return RawTensor(name, "f32", array.shape, memoryview(array.tobytes()))


def random_raw(
    name: str,
    encoding: str,
    shape: tuple[int, int],
    rng: np.random.Generator,
    spread: float | None = 0.1,
) -> RawTensor:
    """A matrix of random blocks; ``spread`` as in ``random_blocks``."""
    blocks = random_blocks(encoding, shape[0] * shape[1] // ENCODINGS[encoding].block, rng, spread)
    return RawTensor(name, encoding, shape, memoryview(blocks.tobytes()))


def wanted(*tensors: RawTensor, name: str | None = None) -> Wanted:
    """All rows of the tensors, stacked."""
    rows = sum(t.shape[0] for t in tensors)
    kind: Literal["vector", "matrix"] = "vector" if len(tensors[0].shape) == 1 else "matrix"
    parts = tuple(Part(t.name) for t in tensors)
    return Wanted(name or tensors[0].name, kind, parts, (rows, *tensors[0].shape[1:]))


def one_sequence(ids: Sequence[int], outputs: Sequence[int] | None = None) -> Batch:
    """A step of one sequence without state."""
    n = len(ids)
    return Batch(
        np.array(ids, np.int32),
        np.arange(n, dtype=np.int32),
        np.array([[0, n, 0]], np.int32) if n else np.zeros((0, 3), np.int32),
        (),
        np.array(range(n) if outputs is None else outputs, np.int32),
    )


POISON = 2
"""Rows at the end of ``Pair``'s embedding that hold NaN and huge values."""
SPARE = 12
"""Blocks of ``Pair``'s memory that only poisoned steps use."""


class Pair:
    """One forward on both back ends, over memories of one shape, all weights float32.

    ``rows`` become the embedding "x": a step's ids choose its activations. Before each step
    the CPU back end plays one of the same size on NaN and 1e30, with every block of the memory
    written, so that whatever a kernel leaves unwritten, or reads beyond what it should, shows.
    """

    def __init__(
        self,
        backend: CpuBackend,
        forward: Forward,
        rows: F32,
        weights: Mapping[str, npt.ArrayLike] | None = None,
        states: Sequence[StateSpec] = (),
        kv: tuple[str, str] = ("f32", "f32"),
        blocks: int = 0,
        eager: bool = False,
    ) -> None:
        self.count = len(rows)
        bad = np.full((POISON, rows.shape[1]), np.nan, np.float32)
        bad[1] = 1e30
        tensors = {name: raw(name, value) for name, value in (weights or {}).items()}
        tensors["x"] = raw("x", np.concatenate([rows, bad]))
        self._cpu, self.memory = self._compile(
            backend, forward, tensors, states, kv[0], eager=eager
        )
        self._reference, self._reference_memory = self._compile(
            ReferenceBackend(), forward, tensors, states, kv[1]
        )
        self.groups = len(set(states))
        self._spare = list(range(blocks, blocks + SPARE))
        for group in range(self.groups):
            self.memory.resize(group, blocks + SPARE)
            self._reference_memory.resize(group, blocks + SPARE)
        if self.groups:
            every = [*range(blocks), *self._spare]
            self._poison(len(every) * BLOCK_TOKENS, 1, every)

    @staticmethod
    def _compile(
        backend: CpuBackend | ReferenceBackend,
        forward: Forward,
        tensors: Mapping[str, RawTensor],
        states: Sequence[StateSpec],
        kv: str,
        **options: bool,
    ) -> tuple[Any, Any]:
        weights = {name: backend.pack(wanted(t), tensors) for name, t in tensors.items()}
        memory = backend.memory(states, kv)
        return backend.compile(lambda ops: forward(ops, weights), memory, **options), memory

    def _poison(self, rows: int, outputs: int, blocks: Sequence[int]) -> None:
        """Play NaN and huge values through slots of that size and through the blocks."""
        ids = [self.count + i % POISON for i in range(rows)]
        batch = one_sequence(ids, [i % rows for i in range(outputs)])
        batch.tables = (np.array([blocks], np.int32),) * self.groups
        self._cpu.run(batch)

    def step(self, batch: Batch) -> tuple[F32, F64]:
        """(what the CPU gives, what the reference gives) for one step."""
        self._poison(max(len(batch.ids), 1), len(batch.outputs), self._spare)
        got = self._cpu.run(batch).copy()
        with np.errstate(all="ignore"):
            return got, self._reference.run(batch).astype(np.float64)


def compiled(
    backend: CpuBackend,
    forward: Forward,
    tensors: Sequence[RawTensor],
    merged: Mapping[str, Sequence[RawTensor]] | None = None,
    eager: bool = False,
) -> tuple[CpuProgram, Mapping[str, Weight], CpuMemory]:
    """A stateless program whose weights are the tensors, and stacks of them by name."""
    every = {t.name: t for t in (*tensors, *(t for ts in (merged or {}).values() for t in ts))}
    weights: dict[str, Weight] = {t.name: backend.pack(wanted(t), every) for t in tensors}
    for name, parts in (merged or {}).items():
        weights[name] = backend.pack(wanted(*parts, name=name), every)
    memory = backend.memory((), "f32")
    return backend.compile(lambda ops: forward(ops, weights), memory, eager), weights, memory
