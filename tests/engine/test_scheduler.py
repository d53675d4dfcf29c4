"""The split of a step's budget, and its pace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.engine.pace import Pace
from gristmill.engine.scheduler import shares

gaps_of = st.lists(st.one_of(st.just(1), st.integers(1, 3000)), min_size=1, max_size=40)


@given(gaps_of, st.integers(0, 600))
def test_shares_spend_the_budget_well(gaps: list[int], more: int) -> None:
    budget = len(gaps) + more
    granted = shares(gaps, budget)
    assert all(0 <= got <= gap for got, gap in zip(granted, gaps, strict=True))
    assert sum(granted) == min(budget, sum(gaps))
    assert granted[0] > 0, "the oldest always goes on, so everything ends"
    assert all(got == 1 for got, gap in zip(granted, gaps, strict=True) if gap == 1)


@given(st.integers(2, 3000), st.integers(2, 3000), st.integers(64, 600))
def test_the_oldest_has_half_and_so_has_the_shortest(long: int, short: int, budget: int) -> None:
    granted = shares([long, short], budget)
    assert granted[0] >= min(long, budget // 2)
    if short < long:
        assert granted[1] >= min(short, budget // 2)


def test_pace_bounds_the_time_of_a_step() -> None:
    pace = Pace(512)
    assert pace.budget(0) == 512
    for _ in range(20):
        pace.observe(512, 5.0)
    assert 32 <= pace.budget(4) <= 40
    assert 90 <= pace.budget(0) <= 110
    for _ in range(40):
        pace.observe(64, 0.001)
    assert pace.budget(4) == 512


def test_pace_leaves_every_answer_its_token() -> None:
    pace = Pace(300)
    pace.observe(64, 1000.0)
    assert pace.budget(256) == 256 + 32
    pace.observe(1, 99.0)
    assert pace.budget(300) == 300
