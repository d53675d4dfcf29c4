"""Ops with a state of fixed size: the CPU beside the reference, and the same bits however cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.backends.cpu.backend import CpuBackend
from gristmill.backends.ops import Batch, Ops, Weight, X
from gristmill.types import Slot

from .cpu_case import F32, F64, Pair, opened

TOKENS = 77
TAPS = 4


def conv_pair(backend: CpuBackend, columns: int, bias: bool, eager: bool = False) -> Pair:
    """A convolution over the embedding."""
    rng = np.random.default_rng(columns)
    weights: dict[str, npt.ArrayLike] = {"w": rng.normal(size=columns * TAPS)}
    if bias:
        weights["b"] = rng.normal(size=columns)

    def forward(ops: Ops, w: Mapping[str, Weight]) -> X:
        x = ops.embed(w["x"])
        # The layer's state begins with something else's.
        return ops.short_conv(x, w["w"], 1, taps=TAPS, bias=w.get("b"), at=5)

    rows = rng.normal(size=(TOKENS, columns)).astype(np.float32)
    states = [Slot(5 + 3 * columns)] * 2
    return Pair(backend, forward, rows, weights, states, blocks=8, eager=eager)


def recur_pair(
    backend: CpuBackend,
    shape: tuple[int, int, int, int],
    delta: bool,
    tiled: bool = False,
    skip: bool = False,
    eager: bool = False,
) -> Pair:
    """A recurrence over columns of the embedding; ``shape`` is heads, key heads, key and value
    columns of a head."""
    heads, key_heads, key, value = shape
    rng = np.random.default_rng(sum(shape))
    widths = (key_heads * key, key_heads * key, heads * value, heads, heads)
    weights: dict[str, npt.ArrayLike] = {"rate": -rng.uniform(0.1, 2.0, heads)}
    if skip:
        weights["skip"] = rng.normal(size=heads)

    def forward(ops: Ops, w: Mapping[str, Weight]) -> X:
        q, k, v, step, gain = ops.split(ops.embed(w["x"]), *widths)
        return ops.recur(
            q,
            ops.scale(ops.rms_norm(k, None, 1e-6, key_heads), key**-0.5),
            v,
            ops.activation(step, "softplus"),
            ops.activation(gain, "sigmoid"),
            0,
            rate=w["rate"],
            key_heads=key_heads,
            delta=delta,
            tiled=tiled,
            skip=w.get("skip"),
        )

    rows = rng.normal(size=(TOKENS, sum(widths))).astype(np.float32)
    states = [Slot(heads * key * value)]
    return Pair(backend, forward, rows, weights, states, blocks=8, eager=eager)


def play(pair: Pair, sizes: Sequence[int], table: Sequence[int]) -> tuple[F32, F64]:
    """All rows in steps of those sizes, over one table of states."""
    got, want, past = list[F32](), list[F64](), 0
    for size in sizes:
        rows = np.arange(past, past + size, dtype=np.int32)
        spans = np.array([[0, size, past]], np.int32)
        tables = (np.array([table], np.int32),)
        outputs = np.arange(size, dtype=np.int32)
        ours, theirs = pair.step(Batch(rows, rows, spans, tables, outputs))
        got.append(ours)
        want.append(theirs)
        past += size
    return np.concatenate(got), np.concatenate(want)


def near(got: F32, want: F64) -> None:
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()


CUTS = ([TOKENS], [1] * TOKENS, [31, 1, 33, 12], [32, 32, 13], [40, 37])
SHAPES = ((4, 2, 8, 16), (3, 3, 13, 33), (2, 1, 64, 70), (6, 2, 32, 32))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("columns", [1, 16, 70, 200])
def test_convolution(columns: int, bias: bool) -> None:
    with opened() as backend:
        alone, want = play(conv_pair(backend, columns, bias), CUTS[0], [3, 0, 5])
        near(alone, want)
        for sizes in CUTS[1:]:
            cut, again = play(conv_pair(backend, columns, bias), sizes, [2, 7, 1])
            assert np.array_equal(cut, alone)
            assert np.array_equal(again, want)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_recurrence(shape: tuple[int, int, int, int], delta: bool) -> None:
    options = {"tiled": shape[0] == 6, "skip": not delta}
    with opened() as backend:
        alone, want = play(recur_pair(backend, shape, delta, **options), CUTS[0], [3, 0, 5])
        near(alone, want)
        for sizes in CUTS[1:]:
            pair = recur_pair(backend, shape, delta, **options, eager=len(sizes) == 3)
            cut, again = play(pair, sizes, [2, 7, 1])
            assert np.array_equal(cut, alone)
            assert np.allclose(again, want, rtol=1e-12)


def test_goes_on_from_a_checkpoint_that_others_share() -> None:
    """States that are there are left at ends of blocks, and whoever names one goes on from it."""
    with opened() as backend:
        pair = recur_pair(backend, (4, 2, 8, 16), True)
        alone, _ = play(pair, [TOKENS], [4, -1, 6])
        rest = np.arange(32, TOKENS, dtype=np.int32)
        spans = np.array([[0, 20, 32], [20, len(rest), 32]], np.int32)
        rows = np.concatenate([rest[:20], rest])
        tables = (np.array([[4, 1, -1], [4, -1, 2]], np.int32),)
        outputs = np.arange(len(rows), dtype=np.int32)
        got, want = pair.step(Batch(rows, rows, spans, tables, outputs))
        near(got, want)
        assert np.array_equal(got[20:], alone[32:])
        assert np.array_equal(got[:20], alone[32:52])


@pytest.mark.parametrize("table", [[-1, 1], [0, -1], [0, 99]])
def test_a_state_without_a_block_is_refused(table: list[int]) -> None:
    with opened() as backend:
        pair = conv_pair(backend, 16, False)
        rows = np.arange(8, dtype=np.int32)
        spans = np.array([[0, 8, 30]], np.int32)
        with pytest.raises(ValueError):
            pair.step(Batch(rows, rows + 30, spans, (np.array([table], np.int32),), rows))
