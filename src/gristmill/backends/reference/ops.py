"""Every op of ``backends.ops.Ops``, eagerly, in float64: the specification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import BLOCK_TOKENS, Activation, Batch, Gate, Rope, Routing, Weight, X
from gristmill.backends.reference.activations import act
from gristmill.backends.reference.mixture import mixture, route
from gristmill.backends.reference.state import F64, ReferenceMemory
from gristmill.types import Slot, Window


@dataclass(frozen=True, slots=True)
class Values:
    """Activations [rows, columns], float64."""

    data: F64

    @property
    def width(self) -> int:
        """Columns."""
        return self.data.shape[1]


@dataclass(frozen=True, slots=True)
class Array:
    """A weight as ``quant.decode`` gives it, float32."""

    data: npt.NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K) of a matrix, (N,) of a vector, (E, N, K) of experts."""
        return self.data.shape

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.data.nbytes


def _wide(weight: Weight) -> F64:
    if not isinstance(weight, Array):
        raise TypeError("the weight belongs to another back end")
    return weight.data.astype(np.float64)


def _maybe(weight: Weight | None) -> F64 | None:
    return None if weight is None else _wide(weight)


def _values(x: X) -> F64:
    if not isinstance(x, Values):
        raise TypeError("the activations belong to another back end")
    return x.data


class ReferenceOps:
    """The ops of one step: bound to its batch and to the memory of its sequences."""

    def __init__(self, batch: Batch, memory: ReferenceMemory) -> None:
        self._batch = batch
        self._memory = memory

    def embed(self, table: Weight, scale: float = 1.0) -> Values:
        """Rows of ``table`` for the step's ids, times ``scale``."""
        if not isinstance(table, Array):
            raise TypeError("the weight belongs to another back end")
        return Values(table.data[self._batch.ids].astype(np.float64) * scale)

    def rms_norm(self, x: X, weight: Weight | None, eps: float, heads: int = 1) -> Values:
        """x / sqrt(mean(x²) + eps) · weight, over each of ``heads`` column groups."""
        data = _values(x)
        groups = data.reshape(len(data), heads, data.shape[1] // heads)
        normed = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + eps)
        if weight is not None:
            normed = normed * _wide(weight)
        return Values(normed.reshape(data.shape))

    def layer_norm(
        self, x: X, weight: Weight, bias: Weight | None, eps: float, heads: int = 1
    ) -> Values:
        """(x − mean) / sqrt(var + eps) · weight + bias, over each of ``heads`` column groups."""
        data = _values(x)
        groups = data.reshape(len(data), heads, data.shape[1] // heads)
        centred = groups - groups.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        normed = normed.reshape(data.shape) * _wide(weight)
        return Values(normed if bias is None else normed + _wide(bias))

    def linear(self, x: X, weight: Weight, bias: Weight | None = None) -> Values:
        """x · weightᵀ + bias."""
        product = _values(x) @ _wide(weight).T
        return Values(product if bias is None else product + _wide(bias))

    def split(self, x: X, *widths: int) -> tuple[Values, ...]:
        """Column ranges of x, in order."""
        data = _values(x)
        if sum(widths) != data.shape[1]:
            raise ValueError(f"widths {widths} do not sum to {data.shape[1]}")
        ends = np.cumsum(widths)
        return tuple(
            Values(data[:, end - width : end]) for end, width in zip(ends, widths, strict=True)
        )

    def rope(self, x: X, rope: Rope, head_dim: int) -> Values:
        """Rotate each head of ``head_dim`` columns by its row's position."""
        data = _values(x)
        heads = data.reshape(len(data), data.shape[1] // head_dim, head_dim).copy()
        n = len(rope.inv_freq)
        positions = self._positions(data).astype(np.float64)
        angle = positions[:, None] * np.array(rope.inv_freq)
        scale = np.full((len(data), 1, 1), rope.scale)
        if rope.growth_after:
            steps = np.floor(positions / rope.growth_after)
            scale = scale * (1 + rope.growth * np.log1p(steps))[:, None, None]
        cos, sin = np.cos(angle)[:, None] * scale, np.sin(angle)[:, None] * scale
        if rope.style == "half":
            first, second = slice(0, n), slice(n, 2 * n)
        else:
            first, second = slice(0, 2 * n, 2), slice(1, 2 * n, 2)
        a, b = heads[..., first].copy(), heads[..., second].copy()
        heads[..., first] = a * cos - b * sin
        heads[..., second] = b * cos + a * sin
        return Values(heads.reshape(data.shape))

    def _positions(self, data: F64) -> npt.NDArray[np.int32]:
        """Of rows that are either the step's tokens or its outputs (of equal number: the same)."""
        every = self._batch.positions
        return every if len(data) == len(every) else every[self._batch.outputs]

    def attention(
        self,
        q: X,
        k: X | None,
        v: X | None,
        layer: int,
        *,
        scale: float,
        softcap: float = 0.0,
        sinks: Weight | None = None,
    ) -> Values:
        """Store k and v in the layer's state, then attend causally within its window."""
        spec = self._memory.spec(layer)
        table = self._batch.tables[self._memory.group(layer)]
        queries = _values(q)
        if isinstance(spec, Slot):
            raise TypeError(f"layer {layer} was not declared as attention")
        head_dim, kv_heads = spec.head_dim, spec.kv_heads
        window = spec.window if isinstance(spec, Window) else None
        result = np.empty_like(queries)
        spans = list(enumerate(cast("list[list[int]]", self._batch.spans.tolist())))
        if len(queries) != len(self._batch.ids):
            spans = self._spans_of_outputs()
        for sequence, (row, rows, past) in spans:
            here = slice(row, row + rows)
            shape = (rows, kv_heads, head_dim)
            blocks = table[sequence]
            if k is not None and v is not None:
                keys, values = _values(k)[here].reshape(shape), _values(v)[here].reshape(shape)
                self._memory.write(layer, blocks, past, keys, values)
            first = 0 if window is None else max(0, past - window + 1)
            seen_k, seen_v = self._memory.read(layer, blocks, first, past + rows)
            hidden = _hidden(past, rows, first, window)
            result[here] = _attend(
                queries[here].reshape(rows, -1, head_dim),
                seen_k,
                seen_v,
                hidden,
                scale,
                softcap,
                None if sinks is None else _wide(sinks),
            )
        return Values(result)

    def _spans_of_outputs(self) -> list[tuple[int, list[int]]]:
        """Each wanted row as a span of its own, with its sequence."""
        spans: list[tuple[int, list[int]]] = []
        for i, output in enumerate(self._batch.outputs.tolist()):
            for sequence, (row, rows, past) in enumerate(self._batch.spans.tolist()):
                if row <= output < row + rows:
                    spans.append((sequence, [i, 1, past + output - row]))
        return spans

    def glu(self, x: X, kind: Literal["silu", "gelu_tanh", "gelu"]) -> Values:
        """act(first half of the columns) · second half."""
        data = _values(x)
        half = data.shape[1] // 2
        return Values(act(data[:, :half], kind) * data[:, half:])

    def experts(
        self,
        x: X,
        logits: X,
        routing: Routing,
        gate_up: Weight,
        down: Weight,
        *,
        gate: Gate,
        limit: float = 0.0,
        gate_up_bias: Weight | None = None,
        down_bias: Weight | None = None,
        selection: Weight | None = None,
        result_scale: Weight | None = None,
    ) -> Values:
        """The weighted sum of what each row's chosen experts make of it."""
        weights = route(_values(logits), routing, _maybe(selection), _maybe(result_scale))
        matrices, biases = (_wide(gate_up), _wide(down)), (_maybe(gate_up_bias), _maybe(down_bias))
        return Values(mixture(_values(x), weights, routing, matrices, biases, gate, limit))

    def activation(self, x: X, kind: Activation) -> Values:
        """Elementwise activation."""
        return Values(act(_values(x), kind))

    def short_conv(
        self,
        x: X,
        weight: Weight,
        layer: int,
        *,
        taps: int,
        bias: Weight | None = None,
        at: int = 0,
    ) -> Values:
        """Each column's own causal convolution; the rows before are in the layer's state."""
        data = _values(x)
        columns, before = data.shape[1], taps - 1
        kernel = _wide(weight).reshape(columns, taps).T
        result = np.zeros_like(data) if bias is None else np.tile(_wide(bias), (len(data), 1))
        for rows, kept in self._runs(layer, slice(at, at + before * columns)):
            past = np.concatenate([kept(-1).reshape(before, columns), data[rows]])
            for i in range(rows.stop - rows.start):
                result[rows.start + i] += (kernel * past[i : i + taps]).sum(0)
                if (state := kept(i)) is not None:
                    state[:] = past[i + 1 : i + taps].reshape(-1)
        return Values(result)

    def recur(
        self,
        q: X,
        k: X,
        v: X,
        step: X,
        gain: X,
        layer: int,
        *,
        rate: Weight,
        key_heads: int,
        delta: bool,
        tiled: bool = False,
        skip: Weight | None = None,
        at: int = 0,
    ) -> Values:
        """A matrix for each head that decays, is written and is read, token by token."""
        rows_of, heads = len(_values(v)), step.width
        values = _values(v).reshape(rows_of, heads, -1)
        each = heads // key_heads
        of = np.arange(heads) % key_heads if tiled else np.arange(heads) // each
        keys = _values(k).reshape(rows_of, key_heads, -1)[:, of]
        queries = _values(q).reshape(rows_of, key_heads, -1)[:, of]
        decay = np.exp(_wide(rate) * _values(step))[..., None, None]
        shape = (heads, keys.shape[2], values.shape[2])
        result = np.zeros_like(values)
        for rows, kept in self._runs(layer, slice(at, at + math.prod(shape))):
            matrix = kept(-1).reshape(shape).copy()
            for row in range(rows.start, rows.stop):
                key = keys[row][..., None]
                matrix *= decay[row]
                known = (key * matrix).sum(1) if delta else 0.0
                written = (values[row] - known) * _values(gain)[row][:, None]
                matrix += key * written[:, None]
                result[row] = (queries[row][..., None] * matrix).sum(1)
                if (state := kept(row - rows.start)) is not None:
                    state[:] = matrix.reshape(-1)
        if skip is not None:
            result += _wide(skip)[:, None] * values
        return Values(result.reshape(rows_of, -1))

    def _runs(self, layer: int, places: slice) -> Iterator[tuple[slice, Callable[[int], Any]]]:
        """Each sequence's rows, and a function that gives its state before them (-1), or where
        to write that after its row i: None but at ends of blocks and of the rows."""
        table = self._batch.tables[self._memory.group(layer)]
        for sequence, (first, count, past) in enumerate(self._batch.spans.tolist()):

            def kept(i: int, count: int = count, past: int = past, s: int = sequence) -> Any:
                tokens = past + i + 1
                if i >= 0 and i + 1 < count and tokens % BLOCK_TOKENS:
                    return None
                return self._memory.state(layer, table[s], tokens, places)

            yield slice(first, first + count), kept

    def add(self, x: X, y: X) -> Values:
        """x + y."""
        return Values(_values(x) + _values(y))

    def mul(self, x: X, y: X) -> Values:
        """x · y, elementwise."""
        return Values(_values(x) * _values(y))

    def scale(self, x: X, factor: float) -> Values:
        """x · factor."""
        return Values(_values(x) * factor)

    def softcap(self, x: X, cap: float) -> Values:
        """cap · tanh(x / cap)."""
        return Values(cap * np.tanh(_values(x) / cap))

    def outputs(self, x: X) -> Values:
        """Only the rows whose logits are wanted, in that order."""
        return Values(_values(x)[self._batch.outputs])


def _hidden(past: int, rows: int, first: int, window: int | None) -> npt.NDArray[np.bool_]:
    """[rows, seen]: which of the tokens ``first``… each row may not see."""
    here = np.arange(past, past + rows, dtype=np.int64).reshape(-1, 1)
    there = np.arange(first, past + rows, dtype=np.int64).reshape(1, -1)
    distance = np.subtract(here, there)
    return (distance < 0) | (distance >= (window or past + rows))


def _attend(
    q: F64,
    k: F64,
    v: F64,
    hidden: npt.NDArray[np.bool_],
    scale: float,
    softcap: float,
    sinks: F64 | None,
) -> F64:
    """Grouped-query attention of one sequence.

    q [rows, heads, d], k and v [seen, kv_heads, d], hidden [rows, seen] → [rows, heads · d].
    Query head h reads key head h // (heads / kv_heads).
    """
    rows, heads, _ = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q.swapaxes(0, 1) @ k.transpose(1, 2, 0) * scale  # [heads, rows, seen]
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    scores[:, hidden] = -np.inf
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    return (weights / total @ v.swapaxes(0, 1)).swapaxes(0, 1).reshape(rows, -1)
