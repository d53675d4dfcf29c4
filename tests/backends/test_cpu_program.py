"""The recorded program and its memory: the work of a step, hostile steps, blocks that move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.backends.cpu.backend import CpuBackend, CpuProgram
from gristmill.backends.cpu.native import ISA_VARIABLE, native
from gristmill.backends.cpu.state import CpuMemory
from gristmill.backends.ops import Batch, Ops, Rope, X
from gristmill.errors import GristmillError, ResourceError, UsageError
from gristmill.files import open_model
from gristmill.models import build
from gristmill.types import Checkpoint, Paged, Window
from tests.models.runner import Runner
from tests.tiny import tiny_llama

from .cpu_case import F32, compiled, one_sequence, opened, raw, wanted

Make = Callable[..., Checkpoint]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def make(**options: Any) -> Checkpoint:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        tiny_llama(path, **options)
        return open_model(path)

    return make


def runner(backend: CpuBackend, checkpoint: Checkpoint, kv: str = "f16") -> Runner:
    return Runner(backend, build(checkpoint), checkpoint, kv, blocks=16)


# ---------------------------------------------------------- shape of the work


@pytest.mark.parametrize(
    ("arch", "per_layer"),
    [
        # norm, qkv, 2 rope, attention, panel, o + residual, norm, gate up, glu, down + residual
        ("llama", 11),
        ("qwen2", 11),
        ("qwen3", 13),  # a norm of q and one of k
        ("gemma3", 17),  # these, two sandwich norms, and additions of their own
    ],
)
@pytest.mark.parametrize("encoding", ["f32", "q8_0"])
def test_nodes(arch: Any, per_layer: int, encoding: str, made: Make, best: str) -> None:
    """Embedding; the layers; the wanted rows, their norm, the head."""
    with opened(1) as backend:
        for layers in (1, 3):
            program = runner(backend, made(arch=arch, layers=layers, encoding=encoding)).program
            assert program.native.nodes == 1 + per_layer * layers + 3  # type: ignore[attr-defined]


def test_activations_of_all_layers_share_memory(made: Make, best: str) -> None:
    """Each slot is one allocation, so a deeper model of the same widths makes no more of them."""
    counts: list[int] = []
    for layers in (2, 9):
        with opened(2) as backend:
            model = runner(backend, made(layers=layers))
            model.step({0: [1, 2, 3]})
            counts.append(model.program.native.allocations)  # type: ignore[attr-defined]
    assert counts[0] == counts[1] < 16


def test_no_allocations(made: Make, level: str) -> None:
    """A step that is no larger than one before allocates nothing."""
    with opened(2) as backend:
        model = runner(backend, made(encoding="q8_0"))
        native_program: Any = model.program.native  # type: ignore[attr-defined]
        assert native_program.allocations == 0
        model.step({0: list(range(40)), 1: [1], 2: list(range(90))})
        before = native_program.allocations
        assert before > 0
        ids = list(range(100))
        for counts in ({0: 1}, {0: 1, 1: 1, 2: 1}, {3: 100}, {0: 8}):
            model.step({i: ids[:n] for i, n in counts.items()})
            assert native_program.allocations == before
        model.step({4: list(range(150))})
        assert native_program.allocations > before


def test_profile(made: Make, best: str) -> None:
    with opened(2) as backend:
        model = runner(backend, made())
        want = model.step({0: [1, 2, 3]})[0]
        native_program: Any = model.program.native  # type: ignore[attr-defined]
        native_program.profile(True)
        assert np.array_equal(model.step({1: [1, 2, 3]})[0], want)
        times = native_program.times()
        assert len(times) == native_program.nodes
        assert all(seconds > 0 for _, seconds in times)
        assert {kind for kind, _ in times} == {
            "embed", "norm", "linear", "rope", "attention", "panel", "glu", "outputs", "head",
        }  # fmt: skip


# --------------------------------------------------------------- hostile steps


def good() -> Batch:
    """Two sequences: 3 new tokens after 40, and 34 from the start."""
    return Batch(
        np.arange(37, dtype=np.int32),
        np.array([40, 41, 42, *range(34)], np.int32),
        np.array([[0, 3, 40], [3, 34, 0]], np.int32),
        (np.array([[3, 1], [0, 2]], np.int32), np.array([[5, 4], [6, 7]], np.int32)),
        np.array([2, 36], np.int32),
    )


def spans(*rows: list[int]) -> Callable[[Batch], None]:
    def change(b: Batch) -> None:
        b.spans = np.array(rows, np.int32)

    return change


def at(name: str, index: Any, value: int, table: int | None = None) -> Callable[[Batch], None]:
    def change(b: Batch) -> None:
        array = b.tables[table] if table is not None else getattr(b, name)
        array[index] = value

    return change


def replaced(**fields: Any) -> Callable[[Batch], None]:
    def change(b: Batch) -> None:
        for name, value in fields.items():
            setattr(b, name, value)

    return change


MOST, LEAST = 2**31 - 1, -(2**31)
BAD: dict[str, Callable[[Batch], None]] = {
    "id beyond the vocabulary": at("ids", 5, 50),
    "largest id": at("ids", 0, MOST),
    "negative id": at("ids", 36, -1),
    "negative position": at("positions", 7, -1),
    "fewer positions": replaced(positions=np.zeros(36, np.int32)),
    "more positions": replaced(positions=np.zeros(38, np.int32)),
    "output beyond the rows": at("outputs", 1, 37),
    "negative output": at("outputs", 0, -1),
    "no spans": replaced(
        spans=np.zeros((0, 3), np.int32), tables=(np.zeros((0, 2), np.int32),) * 2
    ),
    "spans of two columns": replaced(spans=np.zeros((2, 2), np.int32)),
    "spans out of order": spans([34, 3, 40], [0, 34, 0]),
    "spans with a gap": spans([0, 3, 40], [4, 33, 0]),
    "spans that overlap": spans([0, 4, 40], [3, 34, 0]),
    "spans that are short": spans([0, 3, 40], [3, 33, 0]),
    "spans beyond the rows": spans([0, 3, 40], [3, 35, 0]),
    "an empty span": spans([0, 3, 40], [3, 0, 0]),
    "a negative span": spans([0, -3, 40], [-3, 40, 0]),
    "spans that overflow": spans([0, MOST, 40], [MOST, 34, 0]),
    "a negative past": spans([0, 3, -1], [3, 34, 0]),
    "a past beyond the table": spans([0, 3, 62], [3, 34, 0]),
    "a past that overflows": spans([0, 3, MOST], [3, 34, MOST]),
    "an absent block": at("", (0, 1), 9, table=0),
    "the largest block": at("", (1, 1), MOST, table=1),
    "a negative block that is written": at("", (0, 1), -1, table=0),
    "a negative block that is read": at("", (0, 0), -1, table=0),
    "a negative block within the window": at("", (1, 0), -1, table=1),
    "the smallest block": at("", (0, 0), LEAST, table=1),
    "a table too few": replaced(tables=(good().tables[0],)),
    "no tables": replaced(tables=()),
    "a table too many": replaced(tables=(*good().tables, good().tables[0])),
    "a table of fewer rows": replaced(tables=(good().tables[0], good().tables[1][:1])),
    "a narrow table": replaced(tables=(good().tables[0][:, :1], good().tables[1])),
    "a table of no columns": replaced(tables=(good().tables[0], np.zeros((2, 0), np.int32))),
}


def two_groups(backend: CpuBackend) -> tuple[CpuProgram, CpuMemory]:
    """One full layer, one with a window of 8, a vocabulary of 50."""
    rng = np.random.default_rng(0)
    tensors = {
        "x": raw("x", rng.normal(0, 1, (50, 24))),
        "qkv": raw("qkv", rng.normal(0, 0.2, (32, 24))),
        "o": raw("o", rng.normal(0, 0.2, (24, 16))),
    }
    memory = backend.memory([Paged(1, 8), Window(1, 8, 8)], "f32")
    memory.resize(0, 9)
    memory.resize(1, 9)
    w = {name: backend.pack(wanted(tensor), tensors) for name, tensor in tensors.items()}

    def forward(ops: Ops) -> X:
        x = ops.embed(w["x"])
        for layer in range(2):
            q, k, v = ops.split(ops.linear(x, w["qkv"]), 16, 8, 8)
            rope = Rope((1.0, 0.1))
            y = ops.attention(ops.rope(q, rope, 8), ops.rope(k, rope, 8), v, layer, scale=0.3)
            x = ops.add(x, ops.linear(y, w["o"]))
        return ops.linear(ops.outputs(x), w["x"])

    return backend.compile(forward, memory), memory


@pytest.mark.parametrize("name", BAD)
def test_hostile_step(name: str, best: str) -> None:
    """Refused with nothing touched: the same good step gives the same bits before and after."""
    with opened(2) as backend:
        program, _ = two_groups(backend)
        want = program.run(good()).copy()
        bad = good()
        BAD[name](bad)
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            program.run(bad)
        assert program.run(good()).tobytes() == want.tobytes()


def test_random_steps(best: str) -> None:
    """Whatever the numbers: refused, or logits of the wanted rows."""
    rng = np.random.default_rng(9)
    values = np.array([LEAST, -33, -1, 0, 1, 2, 3, 8, 9, 31, 32, 33, 34, 37, 50, 1 << 16, MOST])
    ran = 0
    with opened(1) as backend:
        program, _ = two_groups(backend)
        for _ in range(800):
            batch = good()
            arrays = [batch.ids, batch.positions, batch.spans, *batch.tables, batch.outputs]
            for _ in range(rng.integers(1, 4)):
                array = arrays[rng.choice(6, p=[0.1, 0.1, 0.3, 0.2, 0.2, 0.1])].reshape(-1)
                array[rng.integers(len(array))] = rng.choice(values)
            try:
                assert program.run(batch).shape == (2, 50)
                ran += 1
            except ValueError:
                pass
    assert 40 < ran < 760


def test_two_threads_share_a_pool(best: str) -> None:
    """Programs of one back end that run at the same time take turns."""
    with opened(2) as backend:
        programs = [two_groups(backend)[0] for _ in range(2)]
        want = programs[0].run(good()).tobytes()

        def often(program: CpuProgram) -> bool:
            return all(program.run(good()).tobytes() == want for _ in range(100))

        with ThreadPoolExecutor(2) as both:
            assert all(both.map(often, programs))


def test_blocks_that_a_window_has_let_go(best: str) -> None:
    """-1 is right where no row of the step looks back to, and beyond the sequence."""
    with opened(2) as backend:
        program, _ = two_groups(backend)
        want = program.run(good()).copy()
        batch = good()
        batch.tables[1][0, 0] = -1  # 40 … 42 see 33 at the earliest
        wide = np.full((2, 5), -1, np.int32)
        wide[:, :2] = batch.tables[0]
        batch.tables = (wide, batch.tables[1])
        assert program.run(batch).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "field", ["ids", "positions", "spans", "outputs"],
)  # fmt: skip
def test_arrays_of_other_types(field: str, best: str) -> None:
    """Text, or the wrong number of axes, is a TypeError; never reinterpreted bytes."""
    with opened(1) as backend:
        program, _ = two_groups(backend)
        for value in (None, "ids", np.zeros((2, 2, 2), np.int32), np.array(["a"])):
            batch = good()
            setattr(batch, field, value)
            with pytest.raises(TypeError):
                program.run(batch)


# --------------------------------------------------------- models that are wrong


def wrong(forward: Callable[[Ops, Any], X], best: str) -> None:
    tensors = [raw("x", np.ones((3, 12))), raw("a", np.ones((12, 12))), raw("v", np.ones(5))]
    with opened(1) as backend, pytest.raises((TypeError, ValueError)):
        compiled(backend, forward, tensors)


WRONG: dict[str, Callable[[Ops, Any], X]] = {
    "a sum of two widths": lambda ops, w: ops.add(*ops.split(ops.embed(w["x"]), 5, 7)),
    "a product of two widths": lambda ops, w: ops.mul(*ops.split(ops.embed(w["x"]), 5, 7)),
    "tokens plus outputs": lambda ops, w: ops.add(
        ops.embed(w["x"]), ops.outputs(ops.embed(w["x"]))
    ),
    "linear of another width": lambda ops, w: ops.linear(
        ops.split(ops.embed(w["x"]), 5, 7)[0], w["a"]
    ),
    "a bias of another width": lambda ops, w: ops.linear(ops.embed(w["x"]), w["a"], w["v"]),
    "a norm of another width": lambda ops, w: ops.rms_norm(ops.embed(w["x"]), w["v"], 1e-6),
    "a norm of uneven heads": lambda ops, w: ops.rms_norm(ops.embed(w["x"]), None, 1e-6, 5),
    "a layer norm of another width": lambda ops, w: ops.layer_norm(
        ops.embed(w["x"]), w["v"], None, 1e-6
    ),
    "a glu of odd width": lambda ops, w: ops.glu(ops.split(ops.embed(w["x"]), 5, 7)[0], "silu"),
    "a split that does not sum": lambda ops, w: ops.split(ops.embed(w["x"]), 5, 6)[0],
    "rope of uneven heads": lambda ops, w: ops.rope(ops.embed(w["x"]), Rope((1.0,)), 5),
    "rope of more than the head": lambda ops, w: ops.rope(ops.embed(w["x"]), Rope((1.0,) * 4), 6),
    "outputs of outputs": lambda ops, w: ops.outputs(ops.outputs(ops.embed(w["x"]))),
    "a vector as matrix": lambda ops, w: ops.linear(ops.embed(w["x"]), w["v"]),
    "a matrix as vector": lambda ops, w: ops.rms_norm(ops.embed(w["x"]), w["a"], 1e-6),
}


@pytest.mark.parametrize("name", WRONG)
def test_forwards_that_cannot_be(name: str, best: str) -> None:
    wrong(WRONG[name], best)


@pytest.mark.parametrize("widths", [(16, 4, 8), (16, 8, 4), (12, 8, 8)])
def test_attention_of_wrong_widths(widths: tuple[int, int, int], best: str) -> None:
    def forward(ops: Ops, x: Any) -> X:
        q, k, v, _ = ops.split(ops.embed(x), *widths, 40 - sum(widths))
        return ops.attention(q, k, v, 0, scale=1.0)

    table = raw("x", np.ones((3, 40)))
    with opened(1) as backend:
        x = backend.pack(wanted(table), {"x": table})
        with pytest.raises(TypeError):
            backend.compile(lambda ops: forward(ops, x), backend.memory([Paged(1, 8)], "f16"))


# -------------------------------------------------------------------- memory


def test_memory_keeps_what_stays(made: Make, best: str) -> None:
    """A sequence goes on to the same bits while blocks come and go behind its own."""
    ids = np.random.default_rng(1).integers(0, 100, 90).tolist()
    with opened(2) as backend:
        want = np.concatenate(grown(backend, made, ids, [None] * 5))
        sizes = [3, 1000, 3, 700, 5]
        assert np.array_equal(np.concatenate(grown(backend, made, ids, sizes)), want)


def grown(backend: CpuBackend, made: Make, ids: list[int], sizes: list[Any]) -> list[F32]:
    """Logits of ids, in five steps; before each the memory takes on a size."""
    model = runner(backend, made())
    model.free = [[2, 1, 0]]  # its three blocks, taken from the end
    logits: list[F32] = []
    for i, size in enumerate(sizes):
        if size is not None:
            model.memory.resize(0, size)
            assert model.memory.blocks(0) == size
        logits += model.step({0: ids[18 * i : 18 * i + 18]})
    return logits


def test_copy_of_a_block(made: Make, best: str) -> None:
    """Two sequences that share a prefix: the second on copies of the first's blocks."""
    ids = np.random.default_rng(2).integers(0, 100, 70).tolist()
    with opened(2) as backend:
        model = runner(backend, made(arch="gemma3", layers=6, window=200))
        model.step({0: ids[:50]})
        for group in range(2):
            for block in model.tables[0][group]:
                model.memory.copy(group, block, copy := model.free[group].pop())
                model.tables.setdefault(1, [[], []])[group].append(copy)
        model.past[1] = 50
        first = model.step({0: ids[50:]})[0]
        assert np.array_equal(model.step({1: ids[50:]})[0], first)
        # The copies are no views: what goes on in one does not show in the other.
        model.past[1] = 50
        model.step({0: ids[:5]})
        assert np.array_equal(model.step({1: ids[50:]})[0], first)


def test_the_size_of_a_block(best: str) -> None:
    states = [Paged(3, 80), Window(2, 96, 64), Paged(3, 80)]
    with opened(1) as backend:
        for kv, size in (("f16", 2), ("bf16", 2), ("f32", 4)):
            memory = backend.memory(states, kv)
            assert memory.block_bytes(0) == 2 * 2 * 3 * 80 * 32 * size
            assert memory.block_bytes(1) == 2 * 2 * 96 * 32 * size
            assert memory.blocks(0) == memory.blocks(1) == 0


def test_growing_in_many_steps(best: str) -> None:
    rng = np.random.default_rng(4)
    with opened(1) as backend:
        memory = backend.memory([Paged(1, 8)], "f16")
        for blocks in rng.integers(0, 200, 300).tolist():
            memory.resize(0, blocks)
            assert memory.blocks(0) == blocks
            assert memory.native.bytes == blocks * memory.block_bytes(0)


@pytest.mark.parametrize("blocks", [1 << 44, 1 << 60, (1 << 63) - 1])
def test_more_than_there_is(blocks: int, best: str) -> None:
    with opened(1) as backend:
        memory = backend.memory([Paged(8, 128)], "f16")
        memory.resize(0, 2)
        with pytest.raises(ResourceError, match="memory"):
            memory.resize(0, blocks)
        assert memory.blocks(0) == 2
        memory.copy(0, 0, 1)


def test_blocks_and_groups_that_are_not_there(best: str) -> None:
    with opened(1) as backend:
        memory = backend.memory([Paged(1, 8)], "f16")
        memory.resize(0, 2)
        for source, target in ((2, 0), (0, 2), (-1, 0), (0, -1), (1 << 40, 0)):
            with pytest.raises((IndexError, TypeError)):
                memory.copy(0, source, target)
        for group in (1, -1):
            with pytest.raises(IndexError):
                memory.blocks(group)
            with pytest.raises(IndexError):
                memory.resize(group, 1)


def raises_one_sentence(error: type[GristmillError], call: Callable[[], object], *words: str):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words)


def test_unknown_states(best: str) -> None:
    with opened(1) as backend:
        raises_one_sentence(UsageError, lambda: backend.memory([], "int3"), "int3", "f16")


def test_levels(monkeypatch: pytest.MonkeyPatch, best: str) -> None:
    """A level that cannot run is refused, with those that can."""
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    native.cache_clear()
    raises_one_sentence(UsageError, native, "sse9", "scalar")
    monkeypatch.undo()
    native.cache_clear()
    assert best == native().ISA


def test_an_empty_step(made: Make, best: str) -> None:
    with opened(2) as backend:
        program, _ = two_groups(backend)
        batch = one_sequence([])
        batch.tables = (np.zeros((0, 0), np.int32),) * 2
        assert program.run(batch).shape == (0, 50)
