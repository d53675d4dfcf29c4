"""Ops that record: a model's ``forward`` becomes a list of nodes over values.

Nothing is computed here. ``fuse`` rewrites the list, ``emit`` turns it into a C++ program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gristmill.backends.cpu.state import CpuMemory
from gristmill.backends.cpu.weights import experts_of, matrix_of, vector_of
from gristmill.backends.ops import Activation, Gate, Rope, Routing, Weight, X
from gristmill.types import Window

TOKENS, OUTPUTS = 0, 1
"""Kinds of rows: one per token of the step, or one per wanted output."""


@dataclass(eq=False, slots=True)
class Value:
    """A matrix of activations that one node writes: float32, or the panels of a linear op."""

    rows: int
    width: int
    act: int | None = None
    """None: float32; else the activation format of a panel (f32 0, bf16 1, q8 2)."""
    ordered_as: Any = None
    """The native matrix in whose order a q8 panel has its columns; None: their own."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a value: what models hold as ``X``."""

    value: Value
    at: int
    width: int

    @property
    def whole(self) -> bool:
        """Whether these are all columns of the value."""
        return self.at == 0 and self.width == self.value.width


@dataclass(eq=False, slots=True)
class Node:
    """One op. ``out`` may be dropped by fusion where only ``panels`` are read."""

    kind: str
    inputs: list[Columns]
    out: Value | None
    rows: int
    width: int
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    panels: list[Value] = field(default_factory=list[Value])

    @property
    def by_rows(self) -> bool:
        """Whether workers share it out by rows (row ops), rather than by its own rules."""
        return self.kind not in ("linear", "attention", "experts", "short_conv", "recur")


def columns(x: X) -> Columns:
    """The recorder's own kind of X."""
    if not isinstance(x, Columns):
        raise TypeError("an X of another back end")
    return x


class Recorder:
    """Implements ``ops.Ops``. ``nodes`` is the recording."""

    def __init__(self, memory: CpuMemory) -> None:
        self.nodes: list[Node] = []
        self._memory = memory

    def _add(
        self, kind: str, inputs: list[X], width: int, rows: int | None = None, **args: Any
    ) -> Columns:
        ins = [columns(x) for x in inputs]
        kind_of_rows = ins[0].value.rows if rows is None else rows
        out = Value(kind_of_rows, width)
        self.nodes.append(Node(kind, ins, out, kind_of_rows, width, args))
        return Columns(out, 0, width)

    def whole(self, x: Columns) -> Columns:
        """x as a value of its own: a copy, if it is a part of another."""
        return x if x.whole else self._add("copy", [x], x.width)

    def embed(self, table: Weight, scale: float = 1.0) -> Columns:
        """See ``ops.Ops``."""
        matrix = matrix_of(table)
        return self._add("embed", [], matrix.k, TOKENS, table=matrix, factor=scale)

    def rms_norm(self, x: X, weight: Weight | None, eps: float, heads: int = 1) -> Columns:
        """See ``ops.Ops``."""
        return self._add("rms_norm", [x], x.width, weight=vector_of(weight), eps=eps, heads=heads)

    def layer_norm(
        self, x: X, weight: Weight, bias: Weight | None, eps: float, heads: int = 1
    ) -> Columns:
        """See ``ops.Ops``."""
        vectors = {"weight": vector_of(weight), "bias": vector_of(bias)}
        return self._add("layer_norm", [x], x.width, **vectors, eps=eps, heads=heads)

    def linear(self, x: X, weight: Weight, bias: Weight | None = None) -> Columns:
        """See ``ops.Ops``."""
        matrix = matrix_of(weight)
        if x.width != matrix.k:
            raise TypeError(f"{x.width} columns times a matrix of {matrix.k}")
        return self._add("linear", [x], matrix.n, weight=matrix, bias=vector_of(bias))

    def split(self, x: X, *widths: int) -> tuple[Columns, ...]:
        """See ``ops.Ops``."""
        whole, at, cuts = columns(x), columns(x).at, list[Columns]()
        if sum(widths) != x.width:
            raise TypeError("the widths do not sum to the columns")
        for width in widths:
            cuts.append(Columns(whole.value, at, width))
            at += width
        return tuple(cuts)

    def rope(self, x: X, rope: Rope, head_dim: int) -> Columns:
        """See ``ops.Ops``."""
        return self._add("rope", [x], x.width, rope=rope, head_dim=head_dim)

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
    ) -> Columns:
        """See ``ops.Ops``."""
        spec, group, offset = self._memory.place(layer)
        inputs = [q] if k is None or v is None else [q, k, v]
        if len(inputs) > 1:
            _tokens(*inputs)
        shared = spec.kv_heads * spec.head_dim
        if q.width % shared or any(x.width != shared for x in inputs[1:]):
            raise TypeError(
                f"layer {layer} keeps {shared} columns of keys and of values; q, k and v have "
                f"{', '.join(str(x.width) for x in inputs)}"
            )
        return self._add(
            "attention",
            inputs,
            q.width,
            heads=q.width // spec.head_dim,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            window=spec.window if isinstance(spec, Window) else 0,
            scale=scale,
            softcap=softcap,
            sinks=vector_of(sinks),
            memory=self._memory.native,
            group=group,
            layer_offset=offset,
            type=self._memory.type,
        )

    def glu(self, x: X, kind: Literal["silu", "gelu_tanh", "gelu"]) -> Columns:
        """See ``ops.Ops``."""
        half = x.width // 2
        gate, up = self.split(x, half, half)
        return self._add("glu", [gate, up], half, act=ACTIVATIONS.index(kind))

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
    ) -> Columns:
        """See ``ops.Ops``."""
        _tokens(x, logits)
        read, back = experts_of(gate_up), experts_of(down)
        if x.width != read.k or logits.width != routing.experts or read.count != routing.experts:
            raise TypeError(
                f"{x.width} columns and {logits.width} logits for {read.count} experts "
                f"of {read.k} columns"
            )
        return self._add(
            "experts",
            [x, logits],
            back.n,
            routing=routing,
            gate_up=read,
            down=back,
            gate=GATES.index(gate),
            limit=limit,
            gate_up_bias=vector_of(gate_up_bias),
            down_bias=vector_of(down_bias),
            selection=vector_of(selection),
            result_scale=vector_of(result_scale),
        )

    def activation(self, x: X, kind: Activation) -> Columns:
        """See ``ops.Ops``."""
        return self._add("activation", [x], x.width, act=ACTIVATIONS.index(kind))

    def short_conv(
        self,
        x: X,
        weight: Weight,
        layer: int,
        *,
        taps: int,
        bias: Weight | None = None,
        at: int = 0,
    ) -> Columns:
        """See ``ops.Ops``."""
        _tokens(x)
        return self._add(
            "short_conv",
            [x],
            x.width,
            columns=x.width,
            weight=vector_of(weight),
            bias=vector_of(bias),
            taps=taps,
            **self._state(layer, at),
        )

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
    ) -> Columns:
        """See ``ops.Ops``."""
        inputs, heads = [q, k, v, step, gain], step.width
        _tokens(*inputs)
        if q.width != k.width or q.width % key_heads or v.width % heads or gain.width != heads:
            raise TypeError(f"{[x.width for x in inputs]} columns do not fit {heads} heads")
        return self._add(
            "recur",
            inputs,
            v.width,
            heads=heads,
            key_heads=key_heads,
            key_dim=q.width // key_heads,
            value_dim=v.width // heads,
            delta=delta,
            tiled=tiled,
            rate=vector_of(rate),
            skip=vector_of(skip),
            **self._state(layer, at),
        )

    def _state(self, layer: int, at: int) -> dict[str, Any]:
        group, offset = self._memory.slot(layer)
        return {"memory": self._memory.native, "group": group, "layer_offset": offset, "at": at}

    def add(self, x: X, y: X) -> Columns:
        """See ``ops.Ops``."""
        return self._elementwise(x, y, 0)

    def mul(self, x: X, y: X) -> Columns:
        """See ``ops.Ops``."""
        if y.width == 1 and columns(x).value.rows == columns(y).value.rows:
            return self._add("elementwise", [x, y], x.width, op=2)
        return self._elementwise(x, y, 1)

    def _elementwise(self, x: X, y: X, op: int) -> Columns:
        if x.width != y.width or columns(x).value.rows != columns(y).value.rows:
            raise TypeError(f"{x.width} columns and {y.width}, or rows of different kinds")
        return self._add("elementwise", [x, y], x.width, op=op)

    def scale(self, x: X, factor: float) -> Columns:
        """See ``ops.Ops``."""
        return self._add("scale", [x], x.width, factor=factor)

    def softcap(self, x: X, cap: float) -> Columns:
        """See ``ops.Ops``."""
        return self._add("softcap", [x], x.width, cap=cap)

    def outputs(self, x: X) -> Columns:
        """See ``ops.Ops``."""
        _tokens(x)
        return self._add("outputs", [x], x.width, OUTPUTS)


def _tokens(*xs: X) -> None:
    if any(columns(x).value.rows != TOKENS for x in xs):
        raise TypeError("this op works on the rows of tokens, before ``outputs``")


ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu", "relu2", "sigmoid", "softplus")
GATES = ("silu", "gelu_tanh", "gelu", "clamped")
"""Their order numbers them for the native side."""
