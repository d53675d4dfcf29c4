"""Every op of ``backends.ops.Ops``, eagerly, in float64: the specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import Batch, Gate, Rope, Routing, Weight, X
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
        heads = data.reshape(len(data), -1, head_dim).copy()
        n = len(rope.inv_freq)
        angle = self._batch.positions.astype(np.float64)[:, None] * np.array(rope.inv_freq)
        scale = np.full((len(data), 1, 1), rope.scale)
        if rope.growth_after:
            steps = np.floor(self._batch.positions.astype(np.float64) / rope.growth_after)
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
        for sequence, (row, rows, past) in enumerate(self._batch.spans.tolist()):
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

    def activation(
        self, x: X, kind: Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "sigmoid"]
    ) -> Values:
        """Elementwise activation."""
        return Values(act(_values(x), kind))

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
