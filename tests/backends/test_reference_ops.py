"""The reference ops that no model of ours exercises yet, against torch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from gristmill import backends
from gristmill.backends.ops import Batch, Part, Rope, Wanted
from gristmill.backends.reference.ops import Array, ReferenceOps, Values
from gristmill.backends.reference.state import ReferenceMemory
from gristmill.errors import FormatError, UsageError
from gristmill.types import Paged, RawTensor, StateSpec, Window

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")

F64 = npt.NDArray[np.float64]
ROWS = 7


def ops(states: list[StateSpec] | None = None, past: int = 0, rows: int = ROWS) -> ReferenceOps:
    """Ops of one sequence of ``rows`` tokens in blocks 2, 0, 1."""
    memory = ReferenceMemory(states or [], "f64")
    for group in range(len(set(states or []))):
        memory.resize(group, 3)
    table = np.array([[2, 0, 1]], np.int32)
    batch = Batch(
        np.arange(rows, dtype=np.int32),
        np.arange(past, past + rows, dtype=np.int32),
        np.array([[0, rows, past]], np.int32),
        (table,) * len(set(states or [])),
        np.array([rows - 1], np.int32),
    )
    return ReferenceOps(batch, memory)


def random(*shape: int, seed: int = 0) -> F64:
    """Random numbers, never zero."""
    return np.random.default_rng(seed).normal(size=shape) * 2


def array(data: F64) -> Array:
    """As a weight."""
    return Array(data.astype(np.float32))


def close(got: Any, want: Any) -> None:
    """Equal to float64's rounding."""
    assert isinstance(got, Values)
    np.testing.assert_allclose(got.data, want.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "relu", "relu2"])
def test_activations(kind: Literal["silu", "gelu_tanh", "gelu", "relu", "relu2"]) -> None:
    x = np.concatenate([random(ROWS, 10) * 4, np.full((ROWS, 2), [-800.0, 800.0])], axis=1)
    functions = {
        "silu": F.silu,
        "gelu_tanh": lambda t: F.gelu(t, approximate="tanh"),
        "gelu": F.gelu,
        "relu": F.relu,
        "relu2": lambda t: F.relu(t) ** 2,
    }
    want = functions[kind](torch.from_numpy(x))
    close(ops().activation(Values(x), kind), want)
    if kind in ("silu", "gelu_tanh", "gelu"):
        gated = functions[kind](torch.from_numpy(x[:, :6])) * torch.from_numpy(x[:, 6:])
        close(ops().glu(Values(x), kind), gated)  # type: ignore[arg-type]


def test_norms() -> None:
    x, w, b = random(ROWS, 12), array(random(12, seed=1)), array(random(12, seed=2))
    t, tw, tb = (torch.from_numpy(np.asarray(a, np.float64)) for a in (x, w.data, b.data))
    close(ops().layer_norm(Values(x), w, b, 1e-3), F.layer_norm(t, (12,), tw, tb, 1e-3))
    close(ops().layer_norm(Values(x), w, None, 1e-3), F.layer_norm(t, (12,), tw, None, 1e-3))
    close(ops().rms_norm(Values(x), w, 1e-3), F.rms_norm(t, (12,), tw, 1e-3))
    parts = [
        F.layer_norm(t[:, i : i + 4], (4,), tw[i : i + 4], tb[i : i + 4], 1e-3) for i in (0, 4, 8)
    ]
    close(ops().layer_norm(Values(x), w, b, 1e-3, heads=3), torch.cat(parts, 1))
    grouped = F.rms_norm(t.view(ROWS, 3, 4), (4,), tw[:4], 1e-3).view(ROWS, 12)
    close(ops().rms_norm(Values(x), Array(w.data[:4]), 1e-3, heads=3), grouped)
    close(ops().rms_norm(Values(x), None, 1e-3), F.rms_norm(t, (12,), None, 1e-3))


def test_elementwise() -> None:
    x, y = random(ROWS, 5), random(ROWS, 5, seed=1)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    close(ops().mul(Values(x), Values(y)), tx * ty)
    close(ops().add(Values(x), Values(y)), tx + ty)
    close(ops().scale(Values(x), -0.3), tx * -0.3)
    close(ops().softcap(Values(x), 2.0), 2 * torch.tanh(tx / 2))
    parts = ops().split(Values(x), 1, 3, 1)
    close(parts[1], tx[:, 1:4])
    with pytest.raises(ValueError, match="sum"):
        ops().split(Values(x), 2, 2)


def test_rope_grows_with_the_position() -> None:
    x = random(ROWS, 8)
    rope, past = Rope((0.5, 0.1), "half"), 6
    grown = replace(rope, growth=0.7, growth_after=4)
    factors = 1 + 0.7 * np.log(1 + np.arange(past, past + ROWS) // 4)
    plain = ops(past=past).rope(Values(x), rope, 4).data
    close(ops(past=past).rope(Values(x), grown, 4), torch.from_numpy(plain * factors[:, None]))


@pytest.mark.parametrize("style", ["half", "pairs"])
def test_partial_rope_is_a_rotation_of_complex_numbers(style: Literal["half", "pairs"]) -> None:
    x, frequencies = random(ROWS, 2 * 10), (1.0, 0.3, 0.01)
    got = ops(past=40).rope(Values(x), Rope(frequencies, style, 1.5), 10).data.reshape(ROWS, 2, 10)
    heads = x.reshape(ROWS, 2, 10)
    real, imaginary = (
        (heads[..., :3], heads[..., 3:6])
        if style == "half"
        else (heads[..., 0:6:2], heads[..., 1:6:2])
    )
    turn = np.exp(1j * np.arange(40, 40 + ROWS)[:, None, None] * np.array(frequencies))
    want = (real + 1j * imaginary) * turn * 1.5
    got_real, got_imaginary = (
        (got[..., :3], got[..., 3:6]) if style == "half" else (got[..., 0:6:2], got[..., 1:6:2])
    )
    np.testing.assert_allclose(got_real + 1j * got_imaginary, want, rtol=1e-10)
    assert np.array_equal(got[..., 6:], heads[..., 6:])


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_attention(window: int | None, with_sinks: bool, softcap: float) -> None:
    rows, heads, shared, d = 41, 6, 2, 4
    spec = Paged(shared, d) if window is None else Window(shared, d, window)
    q, k, v = random(rows, heads * d), random(rows, shared * d, seed=1), random(rows, shared * d)
    sinks = array(random(heads, seed=3)) if with_sinks else None
    got = ops([spec], rows=rows).attention(
        Values(q), Values(k), Values(v), 0, scale=0.4, softcap=softcap, sinks=sinks
    )
    tq = torch.from_numpy(q).view(rows, heads, d).transpose(0, 1)
    tk, tv = (
        torch.from_numpy(a).view(rows, shared, d).repeat_interleave(3, 1).transpose(0, 1)
        for a in (k, v)
    )
    scores = tq @ tk.transpose(1, 2) * 0.4
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    distance = torch.arange(rows)[:, None] - torch.arange(rows)[None]
    scores = scores.masked_fill((distance < 0) | (distance >= (window or rows)), -torch.inf)
    if sinks is not None:
        extra = torch.from_numpy(sinks.data.astype(np.float64))[:, None, None]
        scores = torch.cat([scores, extra.expand(heads, rows, 1)], -1)
    weights = torch.softmax(scores, -1)[..., :rows]
    close(got, (weights @ tv).transpose(0, 1).reshape(rows, heads * d))


def test_memory_keeps_copies_and_grows() -> None:
    memory = ReferenceMemory([Paged(1, 2), Window(1, 2, 9), Paged(1, 2)], "f32")
    assert memory.block_bytes(0) == 2 * 2 * 32 * 2 * 4
    assert memory.block_bytes(1) == memory.block_bytes(0) // 2
    memory.resize(0, 2)
    table = np.array([1], np.int32)
    memory.write(2, table, 3, random(1, 1, 2), random(1, 1, 2, seed=1))
    before = memory.read(2, table, 3, 4)
    memory.resize(0, 5)
    memory.copy(0, 1, 4)
    assert (memory.blocks(0), memory.blocks(1)) == (5, 0)
    for other in (table, np.array([4], np.int32)):
        after = memory.read(2, other, 3, 4)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert np.isnan(memory.read(0, table, 3, 4)[0]).all()
    with pytest.raises(IndexError):
        memory.read(2, np.array([-1], np.int32), 3, 4)
    with pytest.raises(UsageError, match="f16"):
        ReferenceMemory([Paged(1, 2)], "q4_0")


def test_packing() -> None:
    backend = backends.open("reference")
    data = {name: random(rows, 6).astype(np.float32) for name, rows in (("a", 4), ("b", 3))}
    tensors = {
        name: RawTensor(name, "f32", value.shape, memoryview(value.tobytes()))
        for name, value in data.items()
    }
    parts = (Part("b"), Part("a", (1, 3)))
    weight = backend.pack(Wanted("w", "matrix", parts, (5, 6)), tensors)
    assert isinstance(weight, Array)
    assert np.array_equal(weight.data, np.concatenate([data["b"], data["a"][1:3]]))
    assert (weight.shape, weight.nbytes) == ((5, 6), 120)
    vector = RawTensor("v", "f32", (6,), memoryview(data["a"][0].tobytes()))
    plus = backend.pack(Wanted("v", "vector", (Part("v"),), (6,), 1.0), {"v": vector})
    assert isinstance(plus, Array)
    assert np.array_equal(plus.data, data["a"][0] + np.float32(1))
    for wanted in (
        Wanted("w", "matrix", parts, (6, 6)),
        Wanted("w", "matrix", (Part("a"), Part("gone")), (5, 6)),
    ):
        with pytest.raises(FormatError, match=r"'w'|'gone'"):
            backend.pack(wanted, tensors)


def test_the_door() -> None:
    with pytest.raises(UsageError, match="cpu, reference"):
        backends.open("gpu")
    with pytest.raises(UsageError, match="one thread"):
        backends.open("reference", threads=2)
