"""The experts op: both back ends on one mixture, and a row's bits whatever is beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.ops import Backend, Gate, Ops, Part, Routing, Wanted, Weight, X
from gristmill.backends.reference import ReferenceBackend
from gristmill.errors import FormatError
from gristmill.quant import ENCODINGS
from gristmill.types import RawTensor
from tests.quant.blocks import random_blocks

from .cpu_case import F32, POISON, one_sequence, opened, raw, wanted

ROWS = 41
EMPTY = memoryview(b"")


@dataclass
class Mixture:
    """A mixture over random rows: x is the embedding "x", the logits a linear op of it."""

    routing: Routing
    width: int = 64
    hidden: int = 32
    encodings: tuple[str, str, str] = ("f32", "f32", "f32")
    gate: Gate = "silu"
    biased: bool = False
    selection: bool = False
    result_scale: bool = False
    residual: bool = False
    seed: int = 0
    tensors: dict[str, RawTensor] = field(default_factory=dict[str, RawTensor])
    wanted: list[Wanted] = field(default_factory=list[Wanted])

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        e, d, h = self.routing.experts, self.width, self.hidden
        x = rng.normal(size=(ROWS + POISON, d)).astype(np.float32)
        x[ROWS], x[ROWS + 1] = np.nan, 1e30
        self._vector("x", x)
        self._vector("router", rng.normal(size=(e, d)) / d**0.5 * 2)
        for name, encoding, n, k in zip(
            ("gate", "up", "down"), self.encodings, (h, h, d), (d, d, h), strict=True
        ):
            blocks = random_blocks(encoding, e * n * k // ENCODINGS[encoding].block, rng, 0.3)
            data = memoryview(blocks.tobytes())
            self.tensors[name] = RawTensor(name, encoding, (e, n, k), data)
        halves = tuple(Part(name, expert=i) for i in range(e) for name in ("gate", "up"))
        self.wanted.append(Wanted("gate_up", "experts", halves, (e, 2 * h, d)))
        downs = tuple(Part("down", expert=i) for i in range(e))
        self.wanted.append(Wanted("down", "experts", downs, (e, d, h)))
        if self.biased:
            self._vector("gate_up_bias", rng.normal(size=e * 2 * h))
            self._vector("down_bias", rng.normal(size=e * d))
        if self.selection:
            self._vector("selection", rng.normal(size=e) * 0.3)
        if self.result_scale:
            self._vector("result_scale", rng.normal(size=e) + 1)

    def _vector(self, name: str, values: npt.ArrayLike) -> None:
        self.tensors[name] = raw(name, values)
        self.wanted.append(wanted(self.tensors[name]))

    def forward(self, ops: Ops, w: Mapping[str, Weight]) -> X:
        """The mixture's result, with what it read added if there is a ``residual``."""
        x = ops.embed(w["x"])
        y = ops.experts(
            x,
            ops.linear(x, w["router"]),
            self.routing,
            w["gate_up"],
            w["down"],
            gate=self.gate,
            limit=1.0,
            gate_up_bias=w.get("gate_up_bias"),
            down_bias=w.get("down_bias"),
            selection=w.get("selection"),
            result_scale=w.get("result_scale"),
        )
        return ops.outputs(ops.add(x, y) if self.residual else y)

    def run(self, backend: Backend, rows: list[int], eager: bool = False) -> F32:
        """The result of some rows, after a step of as many that are NaN and huge."""
        weights = {w.name: backend.pack(w, self.tensors) for w in self.wanted}
        memory = backend.memory((), "f32")
        if isinstance(backend, CpuBackend):
            program = backend.compile(lambda ops: self.forward(ops, weights), memory, eager)
            program.run(one_sequence([ROWS + i % POISON for i in range(len(rows))]))
        else:
            program = backend.compile(lambda ops: self.forward(ops, weights), memory)
        return program.run(one_sequence(rows)).copy()


PLAIN = Routing(7, 3)
MIXTURES = {
    "one": Mixture(Routing(1, 1)),
    "all": Mixture(Routing(5, 5, normalised=False), residual=True),
    "softmax": Mixture(PLAIN, gate="gelu_tanh"),
    "sigmoid": Mixture(replace(PLAIN, score="sigmoid", scale=2.5), selection=True, residual=True),
    "not-normalised": Mixture(replace(PLAIN, normalised=False), result_scale=True, gate="gelu"),
    "clamped": Mixture(PLAIN, gate="clamped", biased=True, width=50, hidden=27),
    "groups": Mixture(
        Routing(12, 3, "sigmoid", groups=4, groups_used=2, group_best=2, scale=1.5), selection=True
    ),
    "one-group": Mixture(Routing(12, 4, groups=3, groups_used=1, normalised=False)),
    "input": Mixture(Routing(6, 2, "sigmoid", normalised=False, weighs_input=True)),
    "bf16": Mixture(PLAIN, encodings=("bf16", "f16", "bf16"), hidden=31, width=33),
    "q8_0": Mixture(PLAIN, encodings=("q8_0", "q8_0", "q8_0"), hidden=96),
    "mixed": Mixture(PLAIN, encodings=("q4_k", "q6_k", "q5_0"), width=256, residual=True),
    "mxfp4": Mixture(
        PLAIN, encodings=("mxfp4", "mxfp4", "mxfp4"), gate="clamped", biased=True, width=96
    ),
    "decoded": Mixture(PLAIN, encodings=("iq3_s", "q8_0", "iq4_nl"), width=256),
}


def tolerance(mixture: Mixture) -> float:
    """Of the largest value: int8 activations where weights are in blocks."""
    if all(encoding == "f32" for encoding in mixture.encodings):
        return 2e-5
    return 0.02 if "bf16" in mixture.encodings else 0.03


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_cpu_is_the_reference(level: str, name: str, rows: int) -> None:
    mixture = MIXTURES[name]
    with opened() as backend:
        got = mixture.run(backend, list(range(rows)))
    want = mixture.run(ReferenceBackend(), list(range(rows)))
    assert np.isfinite(got).all()
    error = np.abs(got - want).max(-1) / np.abs(want).max()
    # A choice between experts that are nearly as good may fall either way: no such row here.
    assert error.max() < tolerance(mixture), error.argmax()


@pytest.mark.parametrize("name", MIXTURES)
def test_bits_of_a_row_are_its_own(level: str, name: str) -> None:
    mixture, rng = MIXTURES[name], np.random.default_rng(5)
    with opened(1) as one, opened(3) as three:
        alone = np.concatenate([mixture.run(one, [row]) for row in range(ROWS)])
        for backend, eager in ((one, True), (three, False), (three, True)):
            for count in (2, 3, ROWS):
                rows = rng.permutation(ROWS)[:count].tolist()
                got = mixture.run(backend, rows, eager)
                assert (got.view(np.uint32) == alone[rows].view(np.uint32)).all(), count


def test_ties_go_to_the_first() -> None:
    mixture = Mixture(Routing(6, 2))
    mixture.tensors["router"] = raw("router", np.zeros((6, 64)))
    got, others = list[F32](), list[F32]()
    for backend in (CpuBackend(1), ReferenceBackend()):
        got.append(mixture.run(backend, [0, 1]))
        backend.close()
    down = mixture.tensors["down"]
    assert np.abs(got[0] - got[1]).max() < 1e-5 * np.abs(got[1]).max()
    values = np.frombuffer(down.data, np.float32).reshape(down.shape).copy()
    values[2:] = 0
    mixture.tensors["down"] = raw("down", values)
    others.append(mixture.run(ReferenceBackend(), [0, 1]))
    assert (others[0] == got[1]).all()


def test_a_reference_by_hand() -> None:
    """Two experts of one hidden feature: the weights are the softmax of the two best logits."""
    mixture = Mixture(Routing(3, 2), width=2, hidden=1)
    gate = np.array([[[1.0, 0]], [[0, 1.0]], [[1.0, 1]]])
    up, down = np.ones((3, 1, 2)), np.array([[[1.0], [0]], [[0], [1.0]], [[5.0], [5]]])
    x = np.array([1.0, 2.0])
    values = {"gate": gate, "up": up, "down": down, "router": [[3.0, 0], [0, 1.0], [0, 0]]}
    for name, value in values.items():
        mixture.tensors[name] = raw(name, value)
    mixture.tensors["x"] = raw("x", np.tile(x, (ROWS + POISON, 1)))
    silu = x / (1 + np.exp(-x)) * 3
    share = np.exp([3.0, 2.0]) / np.exp([3.0, 2.0]).sum()
    assert np.allclose(mixture.run(ReferenceBackend(), [0])[0], silu * share, rtol=1e-6)


@pytest.mark.parametrize("backend", [ReferenceBackend, lambda: CpuBackend(1)])
def test_matrices_that_do_not_fit_are_refused(backend: type[ReferenceBackend]) -> None:
    mixture = Mixture(PLAIN)
    opened_backend = backend()
    short = replace(mixture.wanted[2], shape=(7, 62, 64))
    assert short.name == "gate_up"
    with pytest.raises(FormatError, match="gate_up"):
        opened_backend.pack(short, mixture.tensors)
    opened_backend.close()


def folded(mixture: Mixture, make: Callable[[str, int, int], RawTensor]) -> None:
    """Gate and up as the rows of all experts in one tensor, dealt; down likewise."""
    e, d, h = mixture.routing.experts, mixture.width, mixture.hidden
    for name, n, k in (("gate_up", 2 * h, d), ("down", d, h)):
        mixture.tensors[name] = make(name, e * n, k)
        dealt = name == "gate_up"
        parts = tuple(Part(name, (i * n, i * n + n), dealt=dealt) for i in range(e))
        mixture.wanted = [w for w in mixture.wanted if w.name != name]
        mixture.wanted.append(Wanted(name, "experts", parts, (e, n, k)))


def part(name: str, array: npt.NDArray[Any], encoding: str) -> RawTensor:
    return RawTensor(name, encoding, array.shape, memoryview(array.tobytes()))


def mxfp4_hf(name: str, n: int, k: int) -> RawTensor:
    """Random codes and scales as gpt-oss has them."""
    rng = np.random.default_rng(n)
    codes = part("codes", rng.integers(0, 256, (n, k // 32, 16), np.uint8), "u8")
    scales = part("scales", rng.integers(121, 126, (n, k // 32), np.uint8), "u8")
    return RawTensor(name, "mxfp4_hf", (n, k), EMPTY, {"codes": codes, "scales": scales})


def mlx(name: str, n: int, k: int) -> RawTensor:
    """Random four-bit codes in groups of 32, with scales and biases."""
    rng = np.random.default_rng(n)
    codes = part("codes", rng.integers(0, 1 << 32, (n, k // 8), np.uint32), "u32")
    scales = part("scales", rng.uniform(0.01, 0.05, (n, k // 32)).astype(np.float16), "f16")
    lows = part("lows", rng.uniform(-0.4, -0.1, (n, k // 32)).astype(np.float16), "f16")
    parts = {"codes": codes, "scales": scales, "lows": lows}
    return RawTensor(name, "mlx", (n, k), EMPTY, parts, {"bits": 4, "group": 32})


@pytest.mark.parametrize("make", [mxfp4_hf, mlx])
def test_experts_of_several_tensors(make: Callable[[str, int, int], RawTensor]) -> None:
    mixture = Mixture(PLAIN, width=96, hidden=64)
    folded(mixture, make)
    with opened() as backend:
        got = mixture.run(backend, list(range(ROWS)))
        packed = backend.pack(mixture.wanted[-1], mixture.tensors)
    want = mixture.run(ReferenceBackend(), list(range(ROWS)))
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()
    assert packed.nbytes < 7 * 96 * 64  # four bits and their scales, not floats
