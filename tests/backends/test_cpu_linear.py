"""Packing and linear for every native codec, on every level.

A linear op rounds its activations as its codec says (int8 with a scale per 32, bfloat16, or
not at all). The rounding is done here too, exactly as documented, so that what is left is the
order of float32 additions: the result must be right to 1e-5 of the sum of its terms' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gristmill import quant
from gristmill.backends.cpu.native import native
from gristmill.backends.cpu.weights import CpuMatrix, decode_row, pack
from gristmill.backends.ops import Ops, Part, Wanted, Weight, X
from gristmill.errors import FormatError, GristmillError, UnsupportedError
from gristmill.quant import ENCODINGS
from gristmill.types import RawTensor

from .cpu_case import F32, F64, compiled, one_sequence, opened, random_raw, raw, wanted

NATIVE = (
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k",
    "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
)  # fmt: skip
ROWS = (*range(1, 18), 33)

Weights = Mapping[str, Weight]


def act_of(codec: str) -> int:
    """The activation format a codec multiplies with, as the native side says: f32, bf16 or q8."""
    with opened(1) as backend:
        tensor = raw("w", np.zeros((1, 256)))
        if codec != "f32":
            tensor = random_raw("w", codec, (1, 256), np.random.default_rng(0))
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        return next(act for act in range(3) if matrix.native.needs(act))


def rounded(x: F32, act: int) -> F64:
    """Activations as a linear op sees them, [rows, k]."""
    if act == 0:
        return x.astype(np.float64)
    if act == 1:
        bits = x.view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    scale = largest / np.float32(127)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 1e-36, np.float32(127) / largest, np.float32(0))
    q = np.rint(blocks * inverse.astype(np.float32))
    assert np.abs(q).max(initial=0) <= 127
    return (q.astype(np.float64) * scale).reshape(x.shape)


def expected(x: F64, w: F32, bias: npt.NDArray[np.float32] | float = 0.0) -> tuple[F64, F64]:
    """x · wᵀ + bias, and the size of its terms: a block's scale is at most its largest weight."""
    wide = w.astype(np.float64)
    sizes = np.abs(wide)
    if w.shape[1] % 32 == 0:
        blocks = sizes.reshape(len(w), -1, 32)
        sizes = np.repeat(blocks.max(-1), 32, axis=-1)
    return x @ wide.T + bias, np.abs(x) @ sizes.T + np.abs(bias)


def activations(rows: int, k: int, rng: np.random.Generator) -> F32:
    """Normal values of sizes from 1e-3 to 1e3; a row of zeros, one of a single value."""
    x = rng.normal(0, 1, (rows, k)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    x[1] = 0
    x[2, 1:] = 0
    x[3] = 1e-38  # a block without a scale
    return x.astype(np.float32)


def check(codec: str, n: int, k: int, plain: bool) -> None:
    """All of ROWS through one program: right, and equal in bits for every number of rows."""
    rng = np.random.default_rng((len(codec), ord(codec[-1]), n, k))
    x = activations(max(ROWS), k, rng)
    poison = np.array([np.full(k, np.nan), np.full(k, 1e30)], np.float32)
    weight = random_raw("w", codec, (n, k), rng)
    bias = rng.normal(0, 1, n).astype(np.float32)
    residual = rng.normal(0, 1, (len(x), n)).astype(np.float32)
    both = np.concatenate([np.concatenate([x, poison]), np.pad(residual, ((0, 2), (0, 0)))], 1)

    def forward(ops: Ops, w: Weights) -> X:
        if plain:
            return ops.linear(ops.embed(w["x"]), w["w"])
        a, b = ops.split(ops.embed(w["both"]), k, n)
        return ops.add(b, ops.linear(a, w["w"], w["bias"]))

    tensors = [raw("x", np.concatenate([x, poison])), raw("both", both), raw("bias", bias), weight]
    want, sizes = expected(rounded(x, act_of(codec)), quant.decode(weight))
    if not plain:
        want, sizes = want + bias + residual, sizes + np.abs(bias) + np.abs(residual)
    first: dict[int, F32] = {}
    with opened(2) as backend:
        program, _, _ = compiled(backend, forward, tensors)
        for rows in ROWS:
            program.run(one_sequence([len(x) + i % 2 for i in range(rows)]))
            ids = rng.permutation(len(x))[:rows].tolist()
            got = program.run(one_sequence(ids))
            worst = (np.abs(got - want[ids]) / (sizes[ids] + 1e-30)).max()
            assert worst <= 1e-5, f"{rows} rows: {worst:.2e}"
            for i, row in zip(ids, got.copy(), strict=True):
                assert first.setdefault(i, row).tobytes() == row.tobytes()


def unit(codec: str) -> int:
    """What the tests count K in: a block, or an odd number where there are none."""
    return ENCODINGS[codec].block if ENCODINGS[codec].block > 1 else 35


def shapes(codec: str) -> list[tuple[int, int]]:
    n, k = (5, 4) if ENCODINGS[codec].block == 1 else (1, 3)
    return [(n, unit(codec)), (37, k * unit(codec))]


def test_the_native_codecs(level: str) -> None:
    assert set(native().codecs()) == set(NATIVE)


@pytest.mark.parametrize(
    ("codec", "n", "k"), [*((c, *s) for c in NATIVE for s in shapes(c)), ("f32", 9, 1)]
)
def test_linear(codec: str, n: int, k: int, level: str) -> None:
    check(codec, n, k, plain=True)


@pytest.mark.parametrize("codec", ["f16", "bf16", "q8_0", "q4_k", "q6_k"])
def test_linear_with_bias_and_residual(codec: str, level: str) -> None:
    check(codec, 21, 2 * unit(codec), plain=False)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NATIVE)
@pytest.mark.parametrize("n", [16, 130, 257])
@pytest.mark.parametrize("blocks", [5, 8, 16])
def test_large_linear(codec: str, n: int, blocks: int, level: str) -> None:
    check(codec, n, blocks * unit(codec), plain=False)


@pytest.mark.parametrize("codec", NATIVE)
@pytest.mark.parametrize("spread", [0.1, None], ids=["like weights", "any scales"])
def test_decode(codec: str, spread: float | None, level: str) -> None:
    """Rows of a packed matrix are the file's, bit for bit (but for the sign of zeros)."""
    rng = np.random.default_rng(len(codec))
    k = 3 * unit(codec)
    tensor = random_raw("w", codec, (37, k), rng, spread)
    want = quant.decode(tensor)
    with opened(2) as backend:
        matrix = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(matrix, CpuMatrix)
        got = np.array([decode_row(matrix, i) for i in range(37)])
    zero = np.float32(0)  # −0 + 0 is 0
    assert np.array_equal((got + zero).view(np.uint32), (want + zero).view(np.uint32))


@pytest.mark.parametrize("codec", NATIVE)
def test_tables_are_read_where_they_lie(codec: str, level: str) -> None:
    """The bits of a packed matrix, without its memory, and for as long as anybody reads."""
    rng = np.random.default_rng(len(codec))
    k = 515 if ENCODINGS[codec].block == 1 else 3 * max(unit(codec), 256)
    tensors = {name: random_raw(name, codec, (n, k), rng) for name, n in (("a", 21), ("b", 4))}
    weight = Wanted("t", "table", (Part("a"), Part("b")), (25, k))
    with opened(2) as backend:
        table = backend.pack(weight, tensors)
        matrix = backend.pack(replace(weight, kind="matrix"), tensors)
        assert isinstance(table, CpuMatrix)
        assert isinstance(matrix, CpuMatrix)
        assert table.nbytes == 0 < matrix.nbytes
        del tensors
        for row in range(25):
            assert decode_row(table, row).tobytes() == decode_row(matrix, row).tobytes()


def test_a_table_without_a_native_layout_is_decoded(level: str) -> None:
    tensor = random_raw("t", "iq2_xs", (3, 256), np.random.default_rng(1))
    with opened(2) as backend:
        table = backend.pack(Wanted("t", "table", (Part("t"),), (3, 256)), {"t": tensor})
        assert isinstance(table, CpuMatrix)
        assert np.array_equal(decode_row(table, 2), quant.decode(tensor)[2])


def test_a_table_is_no_matrix_to_multiply_by(level: str) -> None:
    tensor = random_raw("t", "q8_0", (3, 32), np.random.default_rng(1))
    with opened(2) as backend:
        table = backend.pack(Wanted("t", "table", (Part("t"),), (3, 32)), {"t": tensor})
        memory = backend.memory([], "f32")
        with pytest.raises(ValueError, match="no matrix"):
            backend.compile(lambda ops: ops.linear(ops.embed(table), table), memory)


MIXED = ("q4_k", "q6_k", "iq2_xs", "bf16", "f32", "q8_0", "f16")
"""Merged in one matrix: three formats of activations, one encoding without a native layout."""


def test_merged_parts(level: str) -> None:
    rng = np.random.default_rng(3)
    parts = [random_raw(name, name, (5 + 3 * i, 256), rng) for i, name in enumerate(MIXED)]
    parts.append(RawTensor("cut", "q5_k", (20, 256), random_raw("", "q5_k", (20, 256), rng).data))
    tensors = {p.name: p for p in parts}
    weight = Wanted(
        "merged", "matrix",
        (*(Part(name) for name in MIXED), Part("cut", (3, 14)), Part("cut", (0, 1))),
        (sum(5 + 3 * i for i in range(len(MIXED))) + 12, 256),
    )  # fmt: skip
    cuts = [quant.rows(tensors["cut"], 3, 14), quant.rows(tensors["cut"], 0, 1)]
    pieces = [*parts[:-1], *cuts]
    x = activations(40, 256, rng)
    with opened(2) as backend:
        packed = backend.pack(weight, tensors)
        assert isinstance(packed, CpuMatrix)
        assert [d.encoding for d in packed.decoded] == ["iq2_xs"]
        assert packed.shape == weight.shape
        assert packed.nbytes >= sum(p.data.nbytes for p in pieces)
        got = np.array([decode_row(packed, i) for i in range(weight.shape[0])])
        assert np.array_equal(got, np.concatenate([quant.decode(p) for p in pieces]))
        table = backend.pack(wanted(raw("x", x)), {"x": raw("x", x)})
        program = backend.compile(
            lambda ops: ops.linear(ops.embed(table), packed), backend.memory((), "f32")
        )
        for rows in (1, 3, 13, 40):
            ids = rng.integers(0, 40, rows).tolist()
            logits, at = program.run(one_sequence(ids)), 0
            for piece in pieces:
                act = act_of(piece.encoding) if piece.encoding in NATIVE else 0
                want, sizes = expected(rounded(x[ids], act), quant.decode(piece))
                part = logits[:, at : at + piece.shape[0]]
                assert (np.abs(part - want) <= 1e-5 * sizes + 1e-30).all(), piece.encoding
                at += piece.shape[0]


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - set(NATIVE)))
def test_encodings_without_a_layout_are_decoded(encoding: str, best: str) -> None:
    rng = np.random.default_rng(1)
    tensor = random_raw("w", encoding, (19, max(ENCODINGS[encoding].block, 3)), rng)
    with opened(2) as backend:
        packed = backend.pack(wanted(tensor), {"w": tensor})
        assert isinstance(packed, CpuMatrix)
        assert [d.encoding for d in packed.decoded] == [encoding]
        got = np.array([decode_row(packed, i) for i in range(19)])
    assert np.array_equal(got, quant.decode(tensor))


def test_embed_of_every_codec(level: str) -> None:
    """A quantised table gives its rows as they decode, times the scale."""
    rng = np.random.default_rng(2)
    with opened(2) as backend:
        for codec in NATIVE:
            tensor = random_raw("t", codec, (21, 256), rng)
            program, _, _ = compiled(backend, lambda ops, w: ops.embed(w["t"], 3.5), [tensor])
            ids = rng.integers(0, 21, 9).tolist()
            want = quant.decode(tensor)[ids] * np.float32(3.5)
            assert np.array_equal(program.run(one_sequence(ids)), want), codec


# ------------------------------------------------------------ bad weights


def refused(want: Wanted, tensors: Mapping[str, RawTensor], error: type[GristmillError]) -> str:
    with opened(1) as backend, pytest.raises(error) as caught:
        pack(want, tensors, backend._pool)  # pyright: ignore[reportPrivateUsage]
    return str(caught.value)


def whole(shape: tuple[int, ...]) -> Wanted:
    return Wanted("w", "matrix" if len(shape) == 2 else "vector", (Part("t"),), shape)


@pytest.mark.parametrize(
    ("want", "found"),
    [
        ((4, 8), (8, 4)), ((4, 8), (4, 16)), ((4, 8), (5, 8)), ((4, 8), (32,)), ((32,), (4, 9)),
        ((4, 8), (1, 4, 8)), ((4, 8), ()), ((3,), (4,)), ((3,), ()),
    ],
)  # fmt: skip
def test_wrong_shapes(want: tuple[int, ...], found: tuple[int, ...], best: str) -> None:
    tensor = raw("t", np.zeros(found))
    message = refused(whole(want), {"t": tensor}, FormatError)
    assert "'w'" in message or "'t'" in message
    assert str(list(found)) in message


def test_missing_tensor(best: str) -> None:
    assert "'t'" in refused(whole((4, 8)), {}, FormatError)


def test_rows_outside(best: str) -> None:
    want = Wanted("w", "matrix", (Part("t", (2, 6)),), (4, 8))
    assert "'t'" in refused(want, {"t": raw("t", np.zeros((5, 8)))}, FormatError)


@pytest.mark.parametrize("encoding", ["q8_0", "q4_k", "iq2_xs", "f16"])
@pytest.mark.parametrize("extra", [-1, 1, -10_000])
def test_bytes_that_do_not_fit(encoding: str, extra: int, best: str) -> None:
    data = bytes(max(0, ENCODINGS[encoding].nbytes((4, 256)) + extra))
    tensor = RawTensor("t", encoding, (4, 256), memoryview(data))
    assert "'t'" in refused(whole((4, 256)), {"t": tensor}, FormatError)


def test_rows_that_are_not_whole_blocks(best: str) -> None:
    tensor = RawTensor("t", "q4_k", (8, 32), memoryview(bytes(144)))
    assert "'t'" in refused(whole((8, 32)), {"t": tensor}, FormatError)


def test_unknown_encoding(best: str) -> None:
    tensor = RawTensor("t", "q9_9", (4, 8), memoryview(bytes(32)))
    assert "q9_9" in refused(whole((4, 8)), {"t": tensor}, UnsupportedError)


def test_plus(best: str) -> None:
    """Gemma's 1 + w."""
    values = np.random.default_rng(0).normal(0, 1, 7).astype(np.float32)
    x = np.ones((1, 7), np.float32)
    tensors = {"t": raw("t", values), "x": raw("x", x)}
    with opened(1) as backend:
        vector = backend.pack(Wanted("w", "vector", (Part("t"),), (7,), plus=1.0), tensors)
        table = backend.pack(wanted(tensors["x"]), tensors)
        memory = backend.memory((), "f32")
        program = backend.compile(lambda ops: ops.rms_norm(ops.embed(table), vector, 0.0), memory)
        assert np.array_equal(program.run(one_sequence([0]))[0], values + np.float32(1))
