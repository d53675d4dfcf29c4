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


def steps(pace: Pace, answers: int, base: float, added: float, count: int = 200) -> list[float]:
    """What steps take while a prompt without an end is beside ``answers`` answers."""
    times: list[float] = []
    for _ in range(count):
        tokens = pace.budget(answers)
        times.append(base + added * (tokens - answers))
        pace.observe(answers, tokens, times[-1])
    return times


def test_pace_bounds_the_time_of_a_step_where_nobody_waits() -> None:
    pace = Pace(512)
    assert pace.budget(0) == 512
    for _ in range(20):
        pace.observe(0, 512, 5.0)
    assert 90 <= pace.budget(0) <= 110
    for _ in range(40):
        pace.observe(0, 64, 0.001)
    assert pace.budget(0) == 512


@given(
    st.integers(1, 64),
    st.floats(1e-3, 0.2),
    st.floats(1e-5, 1e-2),
    st.floats(1.2, 5.0),
)
def test_prompts_slow_answers_by_the_bound_and_go_on(
    answers: int, base: float, added: float, slowdown: float
) -> None:
    """Whatever a machine's times: the bound holds, except where the least chunk is beyond it."""
    times = steps(Pace(4096, slowdown), answers, base, added)
    settled = times[20:]
    assert max(settled) <= max(slowdown * base, base + 8 * added) * 1.001
    assert sum(settled) > len(settled) * base, "the prompt goes on"
    # And the room that there is is used: all but the probes come near the bound.
    aim = min(slowdown * base, base + 24 * added, 0.25)
    near = sum(1 for each in settled if each >= 0.99 * aim - 2 * added)
    assert near >= len(settled) * 0.9 or base > 0.125


def test_pace_follows_a_machine_that_changes() -> None:
    pace = Pace(4096)
    assert max(steps(pace, 7, 0.040, 0.002)[20:]) <= 0.0801
    assert max(steps(pace, 7, 0.020, 0.002, 400)[200:]) <= 0.0401
    assert max(steps(pace, 7, 0.020, 0.006, 200)[100:]) <= 0.0681, "the least chunk"


def test_pace_leaves_every_answer_its_token() -> None:
    pace = Pace(300)
    pace.observe(256, 256, 1.0)
    pace.observe(256, 300, 1000.0)
    assert pace.budget(256) == 256 + 8
    assert pace.budget(300) == 300
