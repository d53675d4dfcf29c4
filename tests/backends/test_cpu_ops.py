"""Every op, on every level, against the reference: odd sizes, poisoned memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.cpu.native import native
from gristmill.backends.ops import Batch, Ops, Rope, Weight, X
from gristmill.types import Paged, StateSpec, Window

from .cpu_case import Pair, one_sequence, opened

ROWS = (1, 2, 3, 7, 16, 17, 40)

Weights = Mapping[str, Weight]


def close(got: np.ndarray, want: np.ndarray, tolerance: float, floor: float = 1e-30) -> None:
    """Equal but for ``tolerance`` of the row's largest value (of ``floor``, where that is more)."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    size = np.abs(want).max(-1, keepdims=True, initial=floor)
    worst = (np.abs(got - want) / size).max(initial=0)
    assert worst <= tolerance, f"{worst:.2e}"


def check(
    forward: Callable[[Ops, Weights], X],
    width: int,
    weights: Mapping[str, Any] | None = None,
    tolerance: float = 1e-6,
    spread: float = 2.0,
    some: bool = False,
    floor: float = 1e-30,
) -> None:
    """Steps of all of ROWS; ``some``: only some rows are wanted as outputs."""
    rng = np.random.default_rng(width)
    rows = rng.normal(0, spread, (64, width)).astype(np.float32)
    with opened() as backend:
        pair = Pair(backend, forward, rows, weights)
        for n in ROWS:
            outputs = sorted(rng.choice(n, rng.integers(1, n + 1), replace=False)) if some else None
            batch = one_sequence(rng.integers(0, 64, n).tolist(), outputs)
            batch.positions[:] = rng.integers(0, 100_000, n)
            got, want = pair.step(batch)
            close(got, want, tolerance, floor)


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((n, seed)).normal(1, 0.5, n)


def matrix(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((n, k, seed)).normal(0, k**-0.5, (n, k))


@pytest.mark.parametrize("width", [1, 5, 80, 131])
@pytest.mark.parametrize("scale", [1.0, 11.3])
def test_embed(width: int, scale: float, level: str) -> None:
    check(lambda ops, w: ops.embed(w["x"], scale), width)


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 83), (1, 576), (3, 80), (2, 96), (5, 7)])
@pytest.mark.parametrize("plain", [False, True])
def test_rms_norm(heads: int, width: int, plain: bool, level: str) -> None:
    check(
        lambda ops, w: ops.rms_norm(ops.embed(w["x"]), None if plain else w["n"], 1e-5, heads),
        heads * width,
        {"n": vector(width)},
    )


@pytest.mark.parametrize("width", [3, 80, 131])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("far", [0.0, 50.0])
def test_layer_norm(width: int, bias: bool, far: float, level: str) -> None:
    def forward(ops: Ops, w: Weights) -> X:
        x = ops.linear(ops.embed(w["x"]), w["same"], w["far"])
        return ops.layer_norm(x, w["n"], w["b"] if bias else None, 1e-5)

    weights = {"n": vector(width), "b": vector(width, 1), "same": np.eye(width)}
    # Far from zero the variance is what is left of large squares.
    check(forward, width, weights | {"far": np.full(width, far)}, 2e-6 + 1e-6 * far)


@pytest.mark.parametrize(("heads", "width"), [(3, 7), (2, 48), (5, 33)])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_of_heads(heads: int, width: int, bias: bool, level: str) -> None:
    """Each head has a mean, a variance and weights of its own."""
    check(
        lambda ops, w: ops.layer_norm(
            ops.embed(w["x"]), w["n"], w["b"] if bias else None, 1e-5, heads
        ),
        heads * width,
        {"n": vector(heads * width), "b": vector(heads * width, 1)},
    )


@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (48, 64), (130, 80), (31, 257)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(n: int, k: int, bias: bool, level: str) -> None:
    check(
        lambda ops, w: ops.linear(ops.embed(w["x"]), w["w"], w["b"] if bias else None),
        k,
        {"w": matrix(n, k), "b": vector(n)},
        2e-6,
        floor=1.0,
    )


def test_linear_of_linear_of_parts(level: str) -> None:
    """Linear ops that read another's result, a part of it, and the same activations twice."""

    def forward(ops: Ops, w: Weights) -> X:
        a, b = ops.split(ops.linear(ops.embed(w["x"]), w["first"]), 37, 50)
        y = ops.linear(a, w["left"])
        return ops.add(ops.mul(y, ops.linear(a, w["twice"])), ops.linear(b, w["right"]))

    weights = {
        "first": matrix(87, 45), "left": matrix(29, 37), "twice": matrix(29, 37, 1),
        "right": matrix(29, 50),
    }  # fmt: skip
    check(forward, 45, weights, 1e-5)


def test_residuals(level: str) -> None:
    """x + linear(y) is one op where it may be, and right where it may not."""

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        x = ops.add(x, ops.linear(ops.rms_norm(x, None, 1e-6), w["a"]))
        x = ops.add(ops.linear(ops.rms_norm(x, None, 1e-6), w["b"]), x)
        y = ops.linear(x, w["a"])
        x = ops.add(y, y)  # read twice by one op
        z = ops.linear(x, w["b"])
        x = ops.add(z, ops.activation(z, "silu"))  # the other side is made of it
        left, right = ops.split(ops.linear(x, w["wide"]), 53, 53)
        return ops.add(ops.add(left, right), ops.linear(right, w["a"]))

    check(forward, 53, {"a": matrix(53, 53), "b": matrix(53, 53, 1), "wide": matrix(106, 53)}, 1e-5)


def test_a_result_that_is_also_read(level: str) -> None:
    """What a forward returns is stored, though the program reads it again for nothing."""

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        y = ops.linear(x, w["a"])
        ops.add(x, y)
        return y

    check(forward, 40, {"a": matrix(40, 40)}, 2e-6)

    def normed(ops: Ops, w: Weights) -> X:
        y = ops.rms_norm(ops.linear(ops.embed(w["x"]), w["a"]), None, 1e-6)
        ops.linear(y, w["a"])
        return y

    check(normed, 40, {"a": matrix(40, 40)}, 2e-6)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_split_alone(part: int, level: str) -> None:
    """A part may be the result itself."""
    check(lambda ops, w: ops.split(ops.embed(w["x"]), 5, 32, 13)[part], 50)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_ops_on_a_part(part: int, level: str) -> None:
    def forward(ops: Ops, w: Weights) -> X:
        x = ops.split(ops.embed(w["x"]), 33, 33, 33)[part]
        return ops.mul(ops.scale(x, -0.5), ops.rms_norm(x, w["n"], 1e-6, 3))

    check(forward, 99, {"n": vector(11)}, 2e-6)


@pytest.mark.parametrize("style", ["half", "pairs"])
@pytest.mark.parametrize(("head_dim", "pairs"), [(80, 40), (96, 48), (64, 11), (6, 3), (2, 1)])
def test_rope(style: Any, head_dim: int, pairs: int, level: str) -> None:
    frequencies = tuple((10_000.0 ** (-np.arange(pairs) / pairs)).tolist())
    rope = Rope(frequencies, style, 1.25)
    check(lambda ops, w: ops.rope(ops.embed(w["x"]), rope, head_dim), 3 * head_dim)


def test_rope_that_grows(level: str) -> None:
    """Beside one that does not: they must not share a table."""
    plain = Rope((1.0, 0.1), "pairs", 1.25)
    grown = Rope((1.0, 0.1), "pairs", 1.25, growth=0.3, growth_after=2)

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        return ops.add(ops.rope(x, plain, 4), ops.rope(x, grown, 4))

    check(forward, 12)


def test_two_ropes(level: str) -> None:
    local, far = Rope((1.0, 0.1, 0.01)), Rope((1.0, 0.5), "pairs", 0.5)

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        y = ops.rope(ops.rope(x, local, 6), far, 6)
        return ops.add(ops.rope(x, local, 12), y)

    check(forward, 24)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("half", [1, 16, 77])
def test_glu(kind: Any, half: int, level: str) -> None:
    check(lambda ops, w: ops.glu(ops.embed(w["x"]), kind), 2 * half, spread=4, floor=1.0)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "relu", "relu2"])
@pytest.mark.parametrize("spread", [0.01, 3.0, 300.0])
def test_activation(kind: Any, spread: float, level: str) -> None:
    check(lambda ops, w: ops.activation(ops.embed(w["x"]), kind), 83, spread=spread)


@pytest.mark.parametrize("width", [1, 16, 83])
def test_elementwise(width: int, level: str) -> None:
    def forward(ops: Ops, w: Weights) -> X:
        x, y = ops.split(ops.embed(w["x"]), width, width)
        return ops.mul(ops.add(x, ops.scale(y, 0.37)), ops.add(y, y))

    check(forward, 2 * width)


@pytest.mark.parametrize("spread", [0.01, 30.0, 3000.0])
def test_softcap(spread: float, level: str) -> None:
    check(lambda ops, w: ops.softcap(ops.embed(w["x"]), 30.0), 83, spread=spread)


def test_outputs(level: str) -> None:
    """Everything behind ``outputs`` is computed for the wanted rows only."""

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.linear(ops.embed(w["x"]), w["a"])
        x = ops.rms_norm(ops.outputs(x), w["n"], 1e-6)
        return ops.softcap(ops.add(x, ops.glu(ops.linear(x, w["b"], w["c"]), "silu")), 5.0)

    weights = {"a": matrix(35, 48), "b": matrix(70, 35), "n": vector(35), "c": vector(70)}
    check(forward, 48, weights, 1e-5, some=True)


def test_no_outputs_and_no_rows(level: str) -> None:
    """A chunk of a prompt that wants no logits; a step of nothing."""
    with opened() as backend:
        pair = Pair(
            backend,
            lambda ops, w: ops.linear(ops.outputs(ops.embed(w["x"])), w["a"]),
            np.ones((4, 8), np.float32),
            {"a": matrix(9, 8)},
        )
        for batch in (one_sequence([0, 1, 2], []), one_sequence([], [])):
            got, want = pair.step(batch)
            assert got.shape == want.shape == (0, 9)


# ----------------------------------------------------------- attention


class Crowd:
    """Sequences that grow by random spans, in blocks scattered over a memory of that size."""

    def __init__(self, sequences: int, blocks: int, rows: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._free = self._rng.permutation(blocks).tolist()
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._past = [0] * sequences
        self._rows = rows

    def step(self, counts: list[int], window: int = 0) -> Batch:
        """A step that adds ``counts[i]`` tokens to sequence i (0: it is not in the step)."""
        spans: list[list[int]] = []
        positions: list[int] = []
        for i, n in enumerate(counts):
            if not n:
                continue
            table, past = self._tables[i], self._past[i]
            while len(table) * 32 < past + n:
                table.append(self._free.pop())
            for block in range(max(0, past - window + 1) // 32 if window else 0):
                table[block] = -1
            spans.append([len(positions), n, past])
            positions += range(past, past + n)
            self._past[i] += n
        width = max(len(t) for t in self._tables)
        tables = [
            t + [-1] * (width - len(t)) for t, n in zip(self._tables, counts, strict=True) if n
        ]
        ids = self._rng.integers(0, self._rows, len(positions))
        return Batch(
            ids.astype(np.int32), np.array(positions, np.int32), np.array(spans, np.int32),
            (np.array(tables, np.int32),), np.arange(len(positions), dtype=np.int32),
        )  # fmt: skip


def attend(
    backend: CpuBackend,
    spec: Paged | Window,
    heads: int,
    kv: tuple[str, str] = ("f32", "f32"),
    tolerance: float = 3e-6,
    softcap: float = 0.0,
    sinks: bool = False,
) -> None:
    """Prompts, chunks and single tokens of four sequences against the reference."""
    widths = (heads * spec.head_dim, *[spec.kv_heads * spec.head_dim] * 2)

    def forward(ops: Ops, w: Weights) -> X:
        q, k, v = ops.split(ops.embed(w["x"]), *widths)
        extra = w["sinks"] if sinks else None
        scale = spec.head_dim**-0.5
        return ops.attention(q, k, v, 0, scale=scale, softcap=softcap, sinks=extra)

    rng = np.random.default_rng(heads)
    rows = rng.normal(0, 1.5, (64, sum(widths))).astype(np.float32)
    if kv[0] == "bf16":
        rows = (rows.view(np.uint32) & 0xFFFF0000).view(np.float32)
    states: list[StateSpec] = [spec]
    pair = Pair(backend, forward, rows, {"sinks": vector(heads)}, states, kv, blocks=40)
    crowd = Crowd(4, 40, 64, heads)
    window = spec.window if isinstance(spec, Window) else 0
    for counts in ([37, 1, 0, 300], [1, 30, 2, 1], [1, 1, 1, 1], [0, 5, 33, 17], [1, 1, 40, 0]):
        got, want = pair.step(crowd.step(counts, window))
        close(got, want, tolerance)


@pytest.mark.parametrize(
    ("heads", "spec"),
    [
        (1, Paged(1, 64)), (6, Paged(2, 80)), (5, Paged(1, 96)), (4, Paged(4, 40)),
        (2, Window(1, 96, 33)), (9, Window(3, 7, 1)), (4, Window(2, 64, 270)),
    ],
)  # fmt: skip
def test_attention(heads: int, spec: Paged | Window, level: str) -> None:
    with opened() as backend:
        attend(backend, spec, heads)


@pytest.mark.parametrize("kv", [("f16", "f16"), ("bf16", "f32")])
def test_attention_of_narrow_keys(kv: tuple[str, str], level: str) -> None:
    with opened() as backend:
        # Where bfloat16 is multiplied, queries and softmax weights are rounded to its 8 bits;
        # csrc/test/attention_test.cpp holds the kernels to the reference so rounded.
        rounded = kv[0] == "bf16" and native().MULTIPLIES_BF16
        attend(backend, Paged(2, 80), 4, kv, tolerance=2**-6 if rounded else 3e-6)


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"sinks": True}], ids=["softcap", "sinks"])
def test_attention_with(options: dict[str, Any], level: str) -> None:
    with opened() as backend:
        attend(backend, Window(2, 48, 50), 6, tolerance=6e-6, **options)


@pytest.mark.parametrize("chosen", [False, True])
def test_attention_to_the_keys_of_another_layer(chosen: bool, level: str) -> None:
    """Layers that store nothing read what the one before them stored in the same step, with all
    rows or, ``chosen``, with those alone that are wanted."""
    states: list[StateSpec] = [Paged(1, 16), Window(1, 16, 40)]

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        for layer in range(4):
            q, k, v = ops.split(ops.linear(ops.rms_norm(x, None, 1e-6), w["qkv"]), 32, 16, 16)
            own = (k, v) if layer < 2 else (None, None)
            q = ops.rope(q, Rope((1.0, 0.1)), 16)
            x = ops.add(x, ops.linear(ops.attention(q, *own, layer % 2, scale=0.25), w["o"]))
            if chosen and layer == 1:
                x = ops.outputs(x)
        return x

    weights = {"qkv": matrix(64, 24), "o": matrix(24, 32)}
    rows = np.random.default_rng(8).normal(0, 1, (64, 24)).astype(np.float32)
    with opened() as backend:
        pair = Pair(backend, forward, rows, weights, states, blocks=40)
        full, local = Crowd(4, 40, 64, 1), Crowd(4, 40, 64, 2)
        for counts in ([37, 1, 0, 300], [1, 30, 2, 1], [1, 1, 1, 1], [0, 5, 33, 17]):
            batch = full.step(counts)
            batch.tables = (batch.tables[0], local.step(counts, 40).tables[0])
            total = len(batch.ids)
            for count in (total, 0, 1, total // 2) if chosen else (total,):
                picked = np.random.default_rng(count).choice(total, count, replace=False)
                batch.outputs = np.sort(picked).astype(np.int32)
                got, want = pair.step(batch)
                close(got, want, 1e-5)


def test_attention_of_mixed_layers(level: str) -> None:
    """Full and sliding layers together: two groups with their own tables."""
    states: list[StateSpec] = [Window(1, 16, 40), Paged(1, 16), Window(1, 16, 40), Paged(1, 16)]

    def forward(ops: Ops, w: Weights) -> X:
        x = ops.embed(w["x"])
        for layer in range(4):
            q, k, v = ops.split(ops.linear(ops.rms_norm(x, None, 1e-6), w["qkv"]), 32, 16, 16)
            y = ops.attention(q, k, v, layer, scale=0.25)
            x = ops.add(x, ops.linear(y, w["o"]))
        return x

    weights = {"qkv": matrix(64, 24), "o": matrix(24, 32)}
    rows = np.random.default_rng(8).normal(0, 1, (64, 24)).astype(np.float32)
    with opened() as backend:
        pair = Pair(backend, forward, rows, weights, states, blocks=40)
        local, full = Crowd(4, 40, 64, 1), Crowd(4, 40, 64, 2)
        for counts in ([37, 1, 0, 300], [1, 30, 2, 1], [1, 1, 1, 1], [0, 5, 33, 17]):
            batch = full.step(counts)
            batch.tables = (local.step(counts, 40).tables[0], batch.tables[0])
            got, want = pair.step(batch)
            close(got, want, 1e-5)
