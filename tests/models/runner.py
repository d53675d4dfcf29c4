"""Driving a model on a back end as the engine does: spans, block tables, windows let go."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from gristmill import backends
from gristmill.backends.ops import BLOCK_TOKENS, Backend, Batch, state_groups
from gristmill.models import Model
from gristmill.types import Checkpoint, Window

F32 = npt.NDArray[np.float32]

KV_DTYPE = {"reference": "f64", "cpu": "f32"}
TOLERANCE = {"reference": 5e-6, "cpu": 1e-4}
"""Largest difference of a logit, relative to the largest logit.

``transformers`` computes the angles of RoPE in float32 even in a float64 model, which alone is
worth 1e-6 at the positions used here; everything else agrees to the rounding of the result.
"""

ROUNDED = {"qwen3_5": 5e-5, "qwen3_5-square": 2e-5, "qwen3_5_moe": 1e-4, "qwen3_next": 1e-4}
"""``transformers`` computes the gated delta rule in float32 even in a float64 model; made to
compute it in float64 it agrees to 1e-5."""


def tolerance(name: str, backend: str) -> float:
    """What is allowed of a family's model on a back end."""
    return max(TOLERANCE[backend], ROUNDED.get(name, 0.0))


def open_backend(name: str) -> Backend:
    """A back end, or a skip where it is not built."""
    try:
        module = importlib.import_module(backends.BACKENDS[name])
    except ImportError as error:
        pytest.skip(f"the {name} back end is not built: {error}")
    if not hasattr(module, "open_backend"):
        pytest.skip(f"the {name} back end is not there yet")
    return backends.open(name)


class Runner:
    """Sequences over one memory; blocks are handed out in random order."""

    def __init__(
        self,
        backend: Backend,
        model: Model,
        checkpoint: Checkpoint,
        kv_dtype: str,
        blocks: int = 64,
        seed: int = 0,
    ) -> None:
        self.weights = {w.name: backend.pack(w, checkpoint.tensors) for w in model.wanted()}
        self.groups = state_groups(model.states())
        self.memory = backend.memory(model.states(), kv_dtype)
        for group in range(len(self.groups)):
            self.memory.resize(group, blocks)
        self.program = backend.compile(lambda ops: model.forward(ops, self.weights), self.memory)
        order = np.random.default_rng(seed)
        self.free = [order.permutation(blocks).tolist() for _ in self.groups]
        self.tables: dict[int, list[list[int]]] = {}
        self.past: dict[int, int] = {}

    def step(self, spans: Mapping[int, Sequence[int]], all_rows: bool = True) -> list[F32]:
        """Feed each sequence (by its number) its next tokens; logits [rows, vocab] of each."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[tuple[int, int, int]] = []
        wanted: list[int] = []
        for sequence, tokens in spans.items():
            past = self.past.setdefault(sequence, 0)
            self._extend(sequence, past + len(tokens))
            rows.append((len(ids), len(tokens), past))
            ids.extend(tokens)
            positions.extend(range(past, past + len(tokens)))
            wanted.extend(range(rows[-1][0], len(ids)) if all_rows else [len(ids) - 1])
        batch = Batch(
            np.array(ids, np.int32),
            np.array(positions, np.int32),
            np.array(rows, np.int32),
            tuple(self._table(group, list(spans)) for group in range(len(self.groups))),
            np.array(wanted, np.int32),
        )
        logits = self.program.run(batch).copy()
        result: list[F32] = []
        for sequence, tokens in spans.items():
            self.past[sequence] += len(tokens)
            n = len(tokens) if all_rows else 1
            result.append(logits[:n])
            logits = logits[n:]
        return result

    def _extend(self, sequence: int, tokens: int) -> None:
        """Take the blocks that ``tokens`` need; let go of those no window reaches any more."""
        tables = self.tables.setdefault(sequence, [[] for _ in self.groups])
        for group, (spec, _) in enumerate(self.groups):
            table = tables[group]
            while len(table) * BLOCK_TOKENS < tokens:
                table.append(self.free[group].pop())
            if isinstance(spec, Window):
                first = max(0, self.past[sequence] - spec.window + 1)
                for i in range(first // BLOCK_TOKENS):
                    if table[i] >= 0:
                        self.free[group].insert(0, table[i])
                        table[i] = -1

    def _table(self, group: int, sequences: Sequence[int]) -> npt.NDArray[np.int32]:
        width = max(len(self.tables[s][group]) for s in sequences)
        table = np.full((len(sequences), width), -1, np.int32)
        for row, sequence in enumerate(sequences):
            blocks = self.tables[sequence][group]
            table[row, : len(blocks)] = blocks
        return table


def error(got: npt.NDArray[np.floating], want: npt.NDArray[np.floating]) -> float:
    """Largest difference, relative to the largest value wanted."""
    return float(np.abs(got - want).max() / np.abs(want).max())
