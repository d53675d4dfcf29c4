"""Composites bit by bit: codes of whole matrices and of any cut, against big whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.errors import FormatError
from gristmill.quant import COMPOSITES, Codes, composite_of, decode, encoding_of, paired, rows
from gristmill.types import RawTensor

EMPTY = memoryview(b"")


def raw(encoding: str, array: np.ndarray) -> RawTensor:
    data = np.ascontiguousarray(array)
    return RawTensor("part", encoding, data.shape, memoryview(data.tobytes()))


def bit_codes(words: np.ndarray, bits: int) -> list[int]:
    """All codes of a run of words, through one whole number."""
    value = int.from_bytes(np.ascontiguousarray(words).tobytes(), "little")
    return [(value >> (bits * i)) & ((1 << bits) - 1) for i in range(words.size * 32 // bits)]


def gptq(bits: int, n: int, k: int, group: int, rng: np.random.Generator, one: bool) -> RawTensor:
    words = rng.integers(0, 1 << 32, (k * bits // 32, n), dtype=np.uint32)
    zeros = rng.integers(0, 1 << 32, (k // group, n * bits // 32), dtype=np.uint32)
    zeros[-1] = 0xFFFFFFFF  # the largest zeros there are
    parts = {
        "codes": raw("i32", words),
        "zeros": raw("i32", zeros),
        "scales": raw("f16", rng.random((k // group, n)).astype(np.float16)),
    }
    settings = {"bits": bits, "group": group, "zero_plus_one": one}
    return RawTensor("w", "gptq", (n, k), EMPTY, parts, settings)


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_by_whole_numbers(bits: int, one: bool) -> None:
    n, k, group = 96, 64, 32
    tensor = gptq(bits, n, k, group, np.random.default_rng(bits), one)
    shape = {role: part.shape for role, part in tensor.parts.items()}
    words, zeros = (
        np.frombuffer(tensor.parts[role].data, np.uint32).reshape(shape[role])
        for role in ("codes", "zeros")
    )
    scales = np.frombuffer(tensor.parts["scales"].data, np.float16).reshape(shape["scales"])
    want = np.empty((n, k), np.float32)
    zero = [bit_codes(row, bits) for row in zeros]
    for i in range(n):
        code = bit_codes(words[:, i], bits)
        for j in range(k):
            g = j // group
            want[i, j] = np.float32(scales[g, i]) * np.float32(code[j] - zero[g][i] - one)
    assert np.array_equal(decode(tensor), want)
    for start, stop in [(31, 33), (40, 41), (64, 96), (95, 96), (1, 95)]:
        assert np.array_equal(decode(rows(tensor, start, stop)), want[start:stop])


def test_codes_of_cuts() -> None:
    """What a native layout is packed from has the cut's and the deal's order."""
    tensor = gptq(4, 64, 64, 32, np.random.default_rng(1), True)
    index = np.random.default_rng(2).permutation(64) // 32
    tensor.parts["g_idx"] = raw("i32", index.astype(np.int32))  # type: ignore[index]
    family = composite_of(tensor)
    assert family is not None and encoding_of(tensor) is family and family.has_codes(tensor)
    for part in (tensor, rows(tensor, 5, 50), paired(rows(tensor, 16, 48), 4)):
        codes = family.coded_rows(part, 3, 17)
        assert codes.code.shape == (14, 64) and codes.code.dtype == np.uint8
        assert codes.scale.shape == (14, 2) and codes.scale_type == "f16"
        assert codes.order is not None and np.array_equal(np.sort(codes.order), np.arange(64))
        assert np.array_equal(index[codes.order], np.arange(64) // 32)
        assert np.array_equal(codes.values(), decode(part)[3:17])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_hqq_by_its_formula(bits: int, axis: int) -> None:
    rng = np.random.default_rng(bits)
    n, k, group = 24, 64, 32
    shape = (n * k // group, group) if axis else (group, n * k // group)
    per = 10 if bits == 3 else 8 // bits
    packed = rng.integers(0, 1 << (30 if bits == 3 else 8), (-(-shape[0] // per), shape[1]))
    one = (shape[0], 1) if axis else (1, shape[1])
    parts = {
        "codes": raw(*(("i32", packed.astype("i4")) if bits == 3 else ("u8", packed.astype("u1")))),
        "scales": raw("f32", rng.random(one).astype(np.float32)),
        "zeros": raw("f32", rng.random(one).astype(np.float32) * 7),
    }
    settings = {"bits": bits, "group": group, "axis": axis}
    tensor = RawTensor("w", "hqq", (n, k), EMPTY, parts, settings)
    family = COMPOSITES["hqq"]
    assert family.has_codes(tensor) == (axis == 1)
    # Each code by the formula: row r of the layout is field r // height of packed row r mod height.
    height = packed.shape[0]
    down = np.arange(shape[0])
    grid = packed[down % height] >> (bits * (per - 1 - down // height))[:, None]
    code = grid & ((1 << bits) - 1)
    scale, zero = (
        np.frombuffer(parts[role].data, np.float32).reshape(one) for role in ("scales", "zeros")
    )
    want = ((code.astype(np.float32) - zero) * scale).reshape(n, k)
    assert np.array_equal(decode(tensor), want)
    if axis == 1:
        assert np.array_equal(family.coded_rows(tensor, 3, 20).values(), want[3:20])


def test_a_last_group_that_is_smaller() -> None:
    codes = Codes(np.ones((2, 5), np.uint8), 4, 2, np.array([[1, 2, 3]] * 2, np.float32), "f32")
    assert codes.values().tolist() == [[1, 1, 2, 2, 3]] * 2


@pytest.mark.parametrize("name", list(COMPOSITES))
@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2), (0, 4), (4, 0)])
def test_no_matrix_or_no_parts(name: str, shape: tuple[int, ...]) -> None:
    for tensor in (
        RawTensor("w", name, shape, EMPTY),
        RawTensor("w", name, (128, 128), EMPTY),
    ):
        with pytest.raises(FormatError, match="'w' in"):
            decode(tensor)


def test_rows_outside() -> None:
    tensor = gptq(4, 32, 32, 32, np.random.default_rng(1), False)
    for start, stop in [(-1, 2), (3, 2), (0, 33), (33, 33)]:
        with pytest.raises(FormatError, match="has 32"):
            rows(tensor, start, stop)
    with pytest.raises(FormatError, match="is not 3 heads"):
        paired(tensor, 3)
    assert decode(rows(tensor, 4, 8)).shape == (4, 32)
