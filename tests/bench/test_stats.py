from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.bench.stats import percentile, spread

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], q: float) -> None:
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), abs=1e-6)


def test_percentiles_of_a_row() -> None:
    row = [float(i) for i in range(101)]
    assert [percentile(row[::-1], q) for q in (0, 50, 90, 99, 100)] == [0, 50, 90, 99, 100]
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([3.0], 99) == 3.0


def test_percentile_of_nothing_and_of_nonsense() -> None:
    assert math.isnan(percentile([], 50))
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)


def test_spread_leaves_out_what_is_no_number() -> None:
    seen = spread([5.0, math.nan, 1.0, 3.0])
    assert (seen.median, seen.least, seen.most) == (3.0, 1.0, 5.0)
    assert math.isnan(spread([math.nan]).median)
