"""Cuts of rows, and shapes and bytes that do not fit: one clear sentence each."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.errors import FormatError, UnsupportedError
from gristmill.quant import ENCODINGS, decode, encode, rows
from gristmill.types import RawTensor
from tests.quant.blocks import random_blocks


def tensor(name: str, shape: tuple[int, ...]) -> RawTensor:
    """A random tensor called "w"."""
    count = int(np.prod(shape)) // ENCODINGS[name].block
    raw = random_blocks(name, count, np.random.default_rng(6))
    return RawTensor("w", name, shape, memoryview(raw.tobytes()))


def first_row(whole: RawTensor) -> RawTensor:
    """Row 0."""
    return rows(whole, 0, 1)


@pytest.mark.parametrize("name", list(ENCODINGS))
def test_rows_are_a_view_of_the_same_weights(name: str) -> None:
    k = ENCODINGS[name].block
    for shape in [(7, 2 * k), (5, 3, k), (6 * k,)]:
        whole = tensor(name, shape)
        unit = k if len(shape) == 1 else 1
        for start, stop in [(0, 5), (1, 2), (4, 5), (2, 2), (0, shape[0] // unit)]:
            part = rows(whole, start * unit, stop * unit)
            assert part.data.obj is whole.data.obj
            np.testing.assert_array_equal(decode(part), decode(whole)[start * unit : stop * unit])


@pytest.mark.parametrize(("start", "stop"), [(0, 31), (1, 33), (16, 32)])
def test_rows_inside_a_granule(start: int, stop: int) -> None:
    with pytest.raises(FormatError, match=r"'w' in q4_0 cannot be cut .* multiples of 32"):
        rows(tensor("q4_0", (96,)), start, stop)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 8), (8, 8), (-2, -1)])
def test_rows_outside(start: int, stop: int) -> None:
    with pytest.raises(FormatError, match=f"Rows {start} to {stop} of tensor 'w' .* has 7"):
        rows(tensor("q8_0", (7, 64)), start, stop)


def test_rows_of_a_scalar() -> None:
    with pytest.raises(FormatError, match="has 0"):
        rows(tensor("f32", ()), 0, 1)


@pytest.mark.parametrize("name", list(ENCODINGS))
@pytest.mark.parametrize("extra", [-1, 1])
def test_wrong_length(name: str, extra: int) -> None:
    good = tensor(name, (2, 3 * ENCODINGS[name].block))
    size = good.data.nbytes
    data = memoryview((good.data.tobytes() + b"\0")[: size + extra])
    bad = RawTensor("blk.0.w", name, good.shape, data)
    for use in (decode, first_row):
        with pytest.raises(FormatError, match=f"'blk.0.w' .* takes {size} bytes.* {size + extra}"):
            use(bad)


@pytest.mark.parametrize("name", [n for n, e in ENCODINGS.items() if e.block > 1])
def test_rows_that_are_not_whole_blocks(name: str) -> None:
    """Even when the tensor as a whole would be a whole number of blocks."""
    encoding = ENCODINGS[name]
    k = encoding.block
    data = memoryview(bytes(k * encoding.block_bytes))
    for row in (k - 1, k + 1, k // 2):
        with pytest.raises(FormatError, match=f"'w' has rows of {row} elements.* {k}"):
            decode(RawTensor("w", name, (k, row), data[: row * encoding.block_bytes]))


def test_negative_and_huge_shapes() -> None:
    data = memoryview(bytes(34))
    with pytest.raises(FormatError, match="negative"):
        decode(RawTensor("w", "q8_0", (-1, -32), data))
    with pytest.raises(FormatError, match=str(2**62 // 32 * 34)):
        decode(RawTensor("w", "q8_0", (2**31, 2**31), data))


@pytest.mark.parametrize("name", ["f32", "q4_k"])
@pytest.mark.parametrize("shape", [(0,), (0, 256), (3, 0)])
def test_nothing(name: str, shape: tuple[int, ...]) -> None:
    empty = RawTensor("w", name, shape, memoryview(b""))
    assert decode(empty).shape == shape
    assert rows(empty, 0, 0).data.nbytes == 0


def test_scalar() -> None:
    value = RawTensor("w", "f32", (), memoryview(np.float32(2.5).tobytes()))
    assert decode(value).shape == ()
    assert decode(value) == 2.5


@pytest.mark.parametrize("name", ["q8_1", "q4_2", "", "Q4_0"])
def test_unknown_encoding(name: str) -> None:
    unknown = RawTensor("blk.7.w", name, (1, 32), memoryview(bytes(40)))
    for use in (decode, first_row):
        with pytest.raises(UnsupportedError, match=f"'blk.7.w' .* '{name}'.*q4_0.*iq1_m"):
            use(unknown)


@pytest.mark.parametrize("name", ["q4_k", "iq1_s", "nothing"])
def test_what_is_not_written(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{name}'; written are f32.*q5_1"):
        encode(name, np.zeros((1, 256)))
