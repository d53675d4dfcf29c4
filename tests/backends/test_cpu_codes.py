"""Codes in groups (AWQ, GPTQ, compressed-tensors, MLX, HQQ, int8, fp8) in their native layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gristmill import quant
from gristmill.backends.cpu.weights import CpuMatrix, decode_row
from gristmill.backends.ops import Ops, Weight, X
from gristmill.errors import FormatError
from gristmill.types import RawTensor

from . import coded
from .cpu_case import F32, F64, compiled, one_sequence, opened, raw, wanted
from .test_cpu_linear import activations, expected, rounded

Q8 = 2
ROWS = (1, 2, 5, 12, 13, 33)


def run(tensor: RawTensor, x: F32, rng: np.random.Generator, eager: bool = False) -> F32:
    """x · wᵀ, alone and in company: the rows' bits must not differ."""
    n, k = tensor.shape
    poison = np.array([np.full(k, np.nan), np.full(k, 1e30)], np.float32)
    tensors = [raw("x", np.concatenate([x, poison])), tensor]
    found = np.zeros((len(x), n), np.float32)
    seen: set[int] = set()
    with opened(2) as backend:
        program, _, _ = compiled(
            backend, lambda ops, w: ops.linear(ops.embed(w["x"]), w["w"]), tensors, eager=eager
        )
        for rows in ROWS:
            program.run(one_sequence([len(x) + i % 2 for i in range(rows)]))
            ids = rng.permutation(len(x))[:rows].tolist()
            for i, row in zip(ids, program.run(one_sequence(ids)), strict=True):
                assert i not in seen or found[i].tobytes() == row.tobytes()
                found[i] = row
                seen.add(i)
    assert len(seen) == len(x)
    return found


def by_columns(tensor: RawTensor) -> npt.NDArray[np.int32]:
    """The input features in the order of the tensor's columns: blocks of int8 follow it."""
    family = quant.composite_of(tensor)
    assert family is not None
    order = family.coded_rows(tensor, 0, 1).order
    return np.arange(tensor.shape[1], dtype=np.int32) if order is None else order


@pytest.mark.parametrize("kind", list(coded.NATIVE))
def test_linear(kind: str, level: str) -> None:
    rng = np.random.default_rng(len(kind))
    tensor = coded.NATIVE[kind](rng)
    x = activations(max(ROWS), tensor.shape[1], rng)
    got = run(tensor, x, rng)
    order = by_columns(tensor)
    want, sizes = expected(rounded(x[:, order], Q8), quant.decode(tensor)[:, order])
    assert (np.abs(got - want) / (sizes + 1e-30)).max() <= 1e-5


@pytest.mark.parametrize("kind", list(coded.CODEBOOKS))
def test_codebooks(kind: str, level: str) -> None:
    """Stored without loss in about the file's bytes, and the same products."""
    rng = np.random.default_rng(len(kind))
    tensor = coded.CODEBOOKS[kind](rng)
    x = activations(max(ROWS), tensor.shape[1], rng)
    got = run(tensor, x, rng)
    with opened(2) as backend:
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(matrix, CpuMatrix)
        assert matrix.decoded == ()
        act = next(a for a in range(3) if matrix.native.needs(a))
        rows = np.array([decode_row(matrix, i) for i in range(tensor.shape[0])])
    values = quant.decode(tensor)
    assert np.array_equal(rows, values)
    want, sizes = expected(rounded(x, act), values)
    # (Kernels take tables of floats to 2^-15 of their largest value.)
    bound = 1e-3 if kind.startswith("nf4") else 1e-5
    assert (np.abs(got - want) <= bound * sizes + 1e-30).all()


@pytest.mark.parametrize("kind", list(coded.NATIVE))
def test_rows_decode_as_the_format_says(kind: str, level: str) -> None:
    """Bit for bit, and in no more memory than the file's bytes, but for few rows in a tile."""
    tensor = coded.NATIVE[kind](np.random.default_rng(len(kind)))
    with opened(2) as backend:
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(matrix, CpuMatrix)
        assert matrix.decoded == ()
        got = np.array([decode_row(matrix, i) for i in range(tensor.shape[0])])
    assert np.array_equal(got, quant.decode(tensor))


@pytest.mark.parametrize("kind", list(coded.DECODED))
def test_others_become_floats(kind: str, best: str) -> None:
    tensor = coded.DECODED[kind](np.random.default_rng(1))
    with opened(2) as backend:
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(matrix, CpuMatrix)
        assert [d.encoding for d in matrix.decoded] == [tensor.encoding]
        got = np.array([decode_row(matrix, i) for i in range(tensor.shape[0])])
    assert np.array_equal(got, quant.decode(tensor))


def test_memory(best: str) -> None:
    """At most a tenth more than the stored bytes, in every format's usual form."""
    rng = np.random.default_rng(4)
    n, k = 256, 1024
    usual = [
        coded.awq(n, k, rng, 128),
        coded.gptq(n, k, rng, 4, 128),
        coded.gptq(n, k, rng, 4, 32),
        coded.gptq(n, k, rng, 3, 128),
        coded.gptq(n, k, rng, 8, 128, "one"),
        coded.packed(n, k, rng, 4, 32, True, "bf16"),
        coded.int8(n, k, rng, k),
        coded.bnb(n, k, rng),
        *(coded.mlx(n, k, rng, bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64)),
        *(coded.hqq(n, k, rng, bits, 64) for bits in (2, 4, 8)),
        coded.mxfp4(n, k, rng),
        coded.nvfp4(n, k, rng),
        coded.four_bits(n, k, rng, 64),
        coded.four_bits(n, k, rng, 64, True),
        coded.fp8(n, k, rng, (0, 0)),
        coded.fp8(n, k, rng, (1, 0)),
        coded.fp8(n, k, rng, (128, 128)),
        coded.fp8(n, k, rng, (1, 32), "u8", "u32"),
    ]
    with opened(1) as backend:
        for tensor in usual:
            matrix = backend.pack(wanted(tensor), {"w": tensor})
            assert isinstance(matrix, CpuMatrix)
            assert matrix.nbytes <= 1.1 * tensor.nbytes, (tensor.encoding, tensor.settings)


def test_chunks_cuts_and_deals(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix packed in many chunks, of a cut and of rows dealt into pairs."""
    monkeypatch.setattr("gristmill.backends.cpu.layouts._CHUNK_WEIGHTS", 1)
    rng = np.random.default_rng(5)
    whole = coded.gptq(96, 128, rng, 4, 64)
    for tensor in (whole, quant.rows(whole, 5, 91), quant.paired(quant.rows(whole, 16, 80), 4)):
        with opened(2) as backend:
            matrix = backend.pack(wanted(tensor), {"w": tensor})
            assert isinstance(matrix, CpuMatrix)
            got = np.array([decode_row(matrix, i) for i in range(tensor.shape[0])])
        assert np.array_equal(got, quant.decode(tensor))


@pytest.mark.parametrize("eager", [False, True])
def test_orders(eager: bool, best: str) -> None:
    """Matrices that read the same activations, in orders of their own, and one after the other."""
    rng = np.random.default_rng(6)
    k = 64
    first = replace(coded.gptq(64, k, rng, 4, 32, "order"), name="first")
    other = replace(coded.gptq(32, k, rng, 4, 32, "order"), name="other")
    plain = replace(coded.mlx(32, k, rng, 4, 32), name="plain")
    x = activations(9, k, rng)
    tensors = [raw("x", x), first, other, plain]

    def forward(ops: Ops, w: Mapping[str, Weight]) -> X:
        a = ops.scale(ops.embed(w["x"]), 2.0)
        y = ops.add(ops.linear(a, w["other"]), ops.linear(a, w["plain"]))
        return ops.add(y, ops.linear(ops.linear(a, w["first"]), w["other"]))

    with opened(2) as backend:
        program, _, _ = compiled(backend, forward, tensors, eager=eager)
        got = program.run(one_sequence(range(9)))

    def linear(values: F32, tensor: RawTensor) -> F64:
        order = by_columns(tensor)
        w = quant.decode(tensor).astype(np.float64)[:, order]
        return rounded(np.ascontiguousarray(values[:, order], np.float32), Q8) @ w.T

    a = x * np.float32(2)
    inner = linear(a, first)
    want = linear(a, other) + linear(a, plain) + linear(inner.astype(np.float32), other)
    # (The inner result is rounded to int8: it may go a step either way.)
    assert (np.abs(got - want).max(1) <= 2e-3 * np.abs(want).max(1) + 1e-30).all()


def test_orders_that_differ_in_one_matrix(best: str) -> None:
    """The parts with another order than the first one's become floats."""
    rng = np.random.default_rng(7)
    parts = [
        replace(coded.gptq(32, 64, rng, 4, 32, form), name=name)
        for name, form in (("a", "order"), ("b", "order"), ("c", ""))
    ]
    parts.insert(1, replace(parts[0], name="d"))
    x = activations(9, 64, rng)
    with opened(2) as backend:
        program, weights, _ = compiled(
            backend, lambda ops, w: ops.linear(ops.embed(w["x"]), w["m"]), [raw("x", x)],
            merged={"m": parts},
        )  # fmt: skip
        matrix = weights["m"]
        assert isinstance(matrix, CpuMatrix)
        assert [d.encoding for d in matrix.decoded] == ["gptq", "gptq"]
        got = program.run(one_sequence(range(9)))
        rows = np.array([decode_row(matrix, i) for i in range(128)])
    decoded = np.concatenate([quant.decode(p) for p in parts])
    assert np.array_equal(rows, decoded)
    order = by_columns(parts[0])
    for at, act in ((0, Q8), (32, Q8), (64, 0), (96, 0)):
        some = decoded[at : at + 32, order]
        want, sizes = expected(rounded(x[:, order], act), some)
        assert (np.abs(got[:, at : at + 32] - want) <= 1e-5 * sizes + 1e-30).all()


def test_orders_are_checked(best: str) -> None:
    """The native side trusts no order, and no sizes, of its caller."""
    tensor = coded.gptq(32, 64, np.random.default_rng(8), 4, 32)
    with opened(2) as backend:
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(matrix, CpuMatrix)
        native, pool = matrix.native, backend._pool  # pyright: ignore[reportPrivateUsage]
        for order in (np.zeros(64), np.arange(63), np.arange(64) - 1, np.arange(64) + 1):
            with pytest.raises(ValueError, match="order"):
                native.set_order(order.astype(np.int32))
        codes, scales = np.zeros((16, 64), np.uint8), np.ones((16, 2), np.float32)
        zeros = np.zeros((16, 2), np.uint8)
        native.put_codes(16, codes, scales, zeros, None, pool)
        for start, some in ((17, codes), (32, codes), (-16, codes), (0, codes[:, :32].copy())):
            with pytest.raises(ValueError, match=r"where tiles are|do not fit"):
                native.put_codes(start, some, scales, zeros, None, pool)
        for bad in ((zeros[:8], None), (None, None), (zeros, scales), (zeros[:, :1].copy(), None)):
            with pytest.raises(ValueError, match="zeros or lows"):
                native.put_codes(0, codes, scales, *bad, pool)
        with pytest.raises(ValueError, match="not exact"):
            native.put_codes(0, codes, scales * np.float32(0.1), zeros, None, pool)
        for rows, bits, group in ((0, 4, 32), (4, 7, 32), (4, 4, 48), (4, 4, 0)):
            with pytest.raises(ValueError, match=r"fit|bits|multiple"):
                native.append_codes(rows, bits, group, 0, 0)


@pytest.mark.parametrize(("form", "code"), [("f8_e4m3", 0xFF), ("f8_e5m2", 0x7C), ("u32", 0x7F)])
def test_floats_that_are_none_are_refused(form: str, code: int, best: str) -> None:
    tensor = coded.fp8(16, 64, np.random.default_rng(9), (1, 0), "f32", form)
    raw_codes = bytearray(tensor.parts["codes"].data)
    raw_codes[700] = code
    codes = replace(tensor.parts["codes"], data=memoryview(bytes(raw_codes)))
    broken = replace(tensor, parts={**tensor.parts, "codes": codes})
    with opened(1) as backend, pytest.raises(FormatError, match=r"'w' in fp8 .* no numbers"):
        backend.pack(wanted(broken), {"w": broken})
