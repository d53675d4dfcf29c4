"""Quantised modules as their own libraries write them: found in a folder, decoded the same."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.models.huggingface.quantised import combine
from gristmill.models.huggingface.settings import Settings
from gristmill.quant import decode, paired, rows
from gristmill.types import RawTensor
from tests.quant.golden import FAMILIES, Case, cases, ulps

CASES = [pytest.param(c, id=f"{family}-{c.name}") for family in FAMILIES for c in cases(family)]


def made(case: Case) -> RawTensor:
    """The module's matrix; nothing else is left of it."""
    found = dict(combine(Settings(case.config, "config.json"), case.checkpoint))
    tensor = found.pop("m.weight")
    assert not found
    return tensor


@pytest.mark.parametrize("case", CASES)
def test_decoded_as_its_library_does(case: Case) -> None:
    got = decode(made(case))
    assert got[:: case.step].shape == case.want.shape
    assert np.isfinite(got).all() and got.any()
    assert ulps(got[:: case.step], case) <= abs(case.ulps)


@pytest.mark.parametrize("case", CASES)
def test_cut_and_dealt(case: Case) -> None:
    """Rows of the whole, in any order of cutting and dealing; nothing is copied."""
    tensor = made(case)
    whole = decode(tensor)
    n = tensor.shape[0]
    for start, stop in [(0, n), (1, n - 1), (n // 3, n // 3 + 1), (n // 2, n)]:
        part = rows(tensor, start, stop)
        assert np.array_equal(decode(part), whole[start:stop])
        assert all(part.parts[role] is tensor.parts[role] for role in tensor.parts)
        assert np.array_equal(decode(rows(part, 0, 1)), whole[start : start + 1])
    if n % 8:
        return
    order = np.arange(n).reshape(2, 2, n // 4).swapaxes(1, 2).reshape(-1)
    dealt = paired(tensor, 2)
    assert np.array_equal(decode(dealt), whole[order])
    assert np.array_equal(decode(rows(dealt, 3, n - 2)), whole[order[3 : n - 2]])
    half = paired(rows(tensor, n // 2, n), 1)
    assert np.array_equal(decode(half), whole[order[n // 2 :]])
