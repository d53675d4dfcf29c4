"""Fitted encodings: nearer than rounding, and by importance."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gristmill.errors import FormatError, UnsupportedError
from gristmill.quant import ENCODINGS
from gristmill.quant.fit import FITS, fit

F32 = npt.NDArray[np.float32]
QUANTISED = [name for name in FITS if ENCODINGS[name].block > 1]
# Squared error over squared weights of llama.cpp's ggml_quantize_chunk (xllamacpp
# 2026.10.11549), without importance, for ``weights()``.
LLAMA_CPP = {
    "q8_0": 4.57751e-05,
    "q4_0": 0.0116524,
    "q4_1": 0.0079915,
    "q5_0": 0.00289133,
    "q5_1": 0.00188108,
    "q4_k": 0.00683626,
    "q5_k": 0.0017536,
    "q6_k": 0.000461495,
    "iq4_nl": 0.00782686,
    "iq4_xs": 0.00797601,
    "mxfp4": 0.0159519,
}


def weights(rows: int = 64, columns: int = 1024) -> F32:
    """Numbers with heavy tails, as a model's weights have them."""
    rng = np.random.default_rng(3)
    return (rng.standard_t(5, (rows, columns)) * 0.02).astype(np.float32)


def decoded(name: str, values: F32, importance: F32 | None = None) -> F32:
    return ENCODINGS[name].decode(fit(name, values, importance).tobytes(), values.shape)


def error(name: str, values: F32, importance: F32 | None = None, by: F32 | None = None) -> float:
    wrong = (decoded(name, values, importance) - values) ** 2
    return float((wrong if by is None else wrong * by).sum() / (values**2).sum())


@pytest.mark.parametrize("name", list(LLAMA_CPP))
def test_no_worse_than_llama_cpp(name: str) -> None:
    assert error(name, weights()) <= LLAMA_CPP[name]


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1"])
def test_nearer_than_rounding(name: str) -> None:
    x = weights()
    rounded = ENCODINGS[name].decode(ENCODINGS[name].encode(x), x.shape)
    assert error(name, x) < 0.95 * float(((rounded - x) ** 2).sum() / (x**2).sum())


@pytest.mark.parametrize("name", [n for n in QUANTISED if n != "q8_0"])
def test_importance_is_heeded(name: str) -> None:
    x = weights()
    importance = np.exp(np.random.default_rng(4).normal(0, 2, x.shape[1])).astype(np.float32)
    plain, weighted = error(name, x, None, importance), error(name, x, importance, importance)
    assert weighted < plain * (1.0 if name == "mxfp4" else 0.97)


@pytest.mark.parametrize("name", QUANTISED)
def test_zeros_and_extremes(name: str) -> None:
    x = np.zeros((4, 512), np.float32)
    x[1] = 1e-30
    x[2, 7] = -3.0
    x[3] = np.linspace(-1, 1, 512)
    got = decoded(name, x)
    assert np.isfinite(got).all() and not got[0].any()
    assert abs(got[2, 7] + 3.0) < 0.4
    assert np.abs(got[3] - x[3]).max() < 0.2


@pytest.mark.parametrize("name", QUANTISED)
def test_what_is_no_number_is_refused(name: str) -> None:
    for wrong in (np.nan, np.inf):
        x = weights(1, 256)
        x[0, 9] = wrong
        with pytest.raises(FormatError):
            fit(name, x)


def test_what_cannot_be() -> None:
    with pytest.raises(FormatError, match="whole blocks"):
        fit("q4_k", np.zeros((2, 288)))
    with pytest.raises(UnsupportedError, match="q3_k"):
        fit("q3_k", np.zeros((2, 256)))
    with pytest.raises(FormatError, match="importance"):
        fit("q4_k", np.zeros((2, 256)), np.full(255, 1.0))
    with pytest.raises(FormatError, match="importance"):
        fit("q4_0", np.zeros((2, 256)), np.full(256, -1.0))


@pytest.mark.parametrize("name", QUANTISED)
def test_rows_do_not_depend_on_their_company(name: str) -> None:
    x = weights(9, 2048)
    whole = fit(name, x)
    for i in range(9):
        np.testing.assert_array_equal(fit(name, x[i : i + 1]), whole[i : i + 1])
