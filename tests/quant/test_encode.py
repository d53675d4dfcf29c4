"""Encoding: as near as the format allows, and stable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.errors import FormatError
from gristmill.quant import ENCODINGS, encode

WRITTEN = [name for name, encoding in ENCODINGS.items() if encoding.pack is not None]
LEVELS = {"q8_0": 127, "q4_0": 8, "q5_0": 16, "q4_1": 15, "q5_1": 31}


def blocks(seed: int) -> npt.NDArray[np.float32]:
    """Blocks of very different sizes and offsets: (300, 32)."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.uniform(-8, 8, (300, 1)))
    return ((rng.normal(0, 1, (300, 32)) + rng.normal(0, 2, (300, 1))) * size).astype(np.float32)


def test_what_is_written() -> None:
    assert set(WRITTEN) == {"f32", "f16", "bf16", *LEVELS}


@pytest.mark.parametrize("name", list(LEVELS))
def test_error_is_half_a_step(name: str) -> None:
    x = blocks(7)
    got = ENCODINGS[name].decode(encode(name, x), x.shape)
    if name.endswith("_1"):
        reach = x.max(axis=1, keepdims=True) - x.min(axis=1, keepdims=True)
        offset = np.abs(x).max(axis=1, keepdims=True)
    else:
        reach = np.abs(x).max(axis=1, keepdims=True)
        offset = 0 * reach
    step = reach / LEVELS[name]
    # Rounding of the scale (and minimum) to float16 can cost up to 2^-11 of the reach, and
    # where codes reach only to levels − 1 on one side, the far end is a whole step away.
    slack = (reach + offset) * 2.0**-10 + 6e-8 * LEVELS[name]
    error = np.abs(got - x)
    assert (error <= step * (1.0 if name in ("q4_0", "q5_0") else 0.5) + slack).all()
    assert (error <= step * 0.5 + slack).mean() > 0.95


@pytest.mark.parametrize("name", WRITTEN)
def test_encoding_again_changes_nothing(name: str) -> None:
    once = ENCODINGS[name].decode(encode(name, blocks(8)), (300, 32))
    twice = ENCODINGS[name].decode(encode(name, once), once.shape)
    np.testing.assert_allclose(twice, once, rtol=2e-3, atol=np.abs(once).max() * 2e-3)
    if name not in LEVELS:
        np.testing.assert_array_equal(twice, once)


@pytest.mark.parametrize("name", WRITTEN)
def test_zeros(name: str) -> None:
    assert not ENCODINGS[name].decode(encode(name, np.zeros((3, 64))), (3, 64)).any()


@pytest.mark.parametrize(("name", "dtype"), [("f16", "float16"), ("bf16", "bfloat16")])
def test_half_floats_round_as_torch_does(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    words = np.random.default_rng(9).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    ties = (words & 0xFFFF0000) | 0x8000
    x = np.concatenate([words, ties]).view(np.float32)
    x = x[~np.isnan(x)]
    want = torch.tensor(x).to(getattr(torch, dtype)).view(torch.int16).numpy()
    got = np.frombuffer(encode(name, x), np.int16)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_nan_stays_nan(name: str) -> None:
    x = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(ENCODINGS[name].decode(encode(name, x), (3,))).all()


@pytest.mark.parametrize("name", list(LEVELS))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
@pytest.mark.filterwarnings("error")
def test_too_large(name: str, value: float) -> None:
    x = np.zeros((2, 32), dtype=np.float32)
    x[1, 5] = value
    with pytest.raises(FormatError, match="not a finite float16"):
        encode(name, x)


@pytest.mark.parametrize("name", list(LEVELS))
def test_row_length(name: str) -> None:
    with pytest.raises(FormatError, match="multiple"):
        encode(name, np.zeros((32, 33)))
