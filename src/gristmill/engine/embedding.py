"""Embeddings: what a prompt's activations behind the last norm come to."""

from __future__ import annotations

import numpy as np

from gristmill.backends.ops import F32
from gristmill.types import Pooling


class Pool:
    """Collects the rows of one prompt, chunk by chunk."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._rows: list[F32] = []
        self._sum = np.zeros(0)
        self._count = 0

    def add(self, rows: F32, computed: int) -> None:
        """The wanted rows of the chunk that begins at token ``computed``, float32 [n, width].

        A prompt that lost its blocks comes again from its beginning.
        """
        if computed == 0:
            self._rows, self._count, self._sum = [], 0, np.zeros(0)
        if self._pooling != "mean":
            self._rows.append(rows.copy())
            return
        total = rows.sum(axis=0, dtype=np.float64)
        self._sum = total if self._count == 0 else self._sum + total
        self._count += len(rows)

    def result(self) -> bytes:
        """The embedding, as ``Delta.embedding`` has it."""
        if self._pooling == "mean":
            return (self._sum / max(1, self._count)).astype(np.float32).tobytes()
        return b"".join(rows.tobytes() for rows in self._rows)
