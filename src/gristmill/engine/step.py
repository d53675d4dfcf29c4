"""From the spans of a ``StepPlan`` to a ``Batch`` to logits.

Python time counts here: a step of a small model takes a few milliseconds. Everything is put
together in ``array('i')``, whose slices are copied by ``memcpy``, and handed on as numpy views.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from gristmill.backends.ops import F32, I32, Batch, Program
from gristmill.engine.scheduler import Span
from gristmill.engine.sequence import Sequence


class Stepper:
    """Fills batches for one program. ``groups`` state groups, positions below ``context``."""

    def __init__(self, program: Program, groups: int, context: int) -> None:
        self._program = program
        self._groups = groups
        self._positions = array("i", range(context + 1))
        self._padding = array("i", [-1]) * 64

    def run(self, all_spans: list[Span]) -> F32:
        """Compute the step. Row i of the result belongs to row ``outputs[i]`` of the batch."""
        return self._program.run(self.batch(all_spans))

    def batch(self, all_spans: list[Span]) -> Batch:
        """The arrays of a step (see ``ops.Batch``)."""
        ids, positions, spans, outputs = array("i"), array("i"), array("i"), array("i")
        for span in all_spans:
            start, end = span.computed, span.computed + span.count
            ids += span.sequence.tokens[start : start + span.known]
            ids.extend(span.draft)
            positions += self._positions[start:end]
            spans.extend((span.row, span.count, start))
            outputs.extend(span.wanted)
        tables = tuple(self._table(all_spans, group) for group in range(self._groups))
        return Batch(
            _numpy(ids),
            _numpy(positions),
            _numpy(spans).reshape(-1, 3),
            tables,
            _numpy(outputs),
        )

    def _table(self, all_spans: list[Span], group: int) -> I32:
        rows = [span.sequence.table.rows[group] for span in all_spans]
        width = max(map(len, rows))
        if width > len(self._padding):
            self._padding = array("i", [-1]) * (2 * width)
        table = array("i")
        for row in rows:
            table += row
            table += self._padding[: width - len(row)]
        return _numpy(table).reshape(len(rows), width)


class Embedder:
    """Computes prompts to be embedded, with a program that is made (by ``make``) when there is
    one for the first time."""

    def __init__(self, make: Callable[[], Program] | None, groups: int, context: int) -> None:
        self._make = make
        self._groups = groups
        self._context = context
        self._stepper: Stepper | None = None

    def run(self, all_spans: list[Span]) -> list[Sequence]:
        """Compute their rows, and pool them; which of the sequences are complete with this."""
        if not all_spans:
            return []
        if self._stepper is None:
            assert self._make is not None
            self._stepper = Stepper(self._make(), self._groups, self._context)
        rows = self._stepper.run(all_spans)
        complete: list[Sequence] = []
        first = 0
        for span in all_spans:
            sequence, count = span.sequence, len(span.wanted)
            assert sequence.pool is not None
            sequence.pool.add(rows[first : first + count], span.computed)
            first += count
            if span.computed + span.count == len(sequence.tokens):
                complete.append(sequence)
        return complete


def _numpy(values: array[int]) -> I32:
    return np.frombuffer(values, np.int32) if values else np.empty(0, np.int32)
