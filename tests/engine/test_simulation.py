"""Laws of scheduling, on the real scheduler with a fake clock; the figures with ``-s``."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.engine.line import PATIENCE, TURN
from gristmill.types import Paged, Window
from tests.engine.simulator import Arrival, Cost, Simulation, some


def test_ten_thousand_requests_keep_every_law() -> None:
    """Overloaded and idle by turns, with too few blocks for all: nobody is lost, no block is, and
    nobody waits without a bound."""
    arrivals = some(8000, 1, 6.0) + some(2000, 2, 30.0)
    half = arrivals[7999].at
    for arrival in arrivals[8000:]:
        arrival.at += half
    done = Simulation(arrivals).run()
    assert all(each.done >= each.first > each.at for each in arrivals)
    assert done.tokens == sum(each.answer for each in arrivals)
    assert done.scheduler.preemptions > 0, "memory was short at times"
    assert done.scheduler.prefix_hits > 0
    assert max(each.overdue_at for each in arrivals) >= 0, "somebody waited long"


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rate=st.floats(1, 200),
    clients=st.integers(1, 6),
    blocks=st.integers(80, 300),
    running=st.integers(1, 16),
    window=st.booleans(),
)
def test_any_arrivals_keep_every_law(
    seed: int, rate: float, clients: int, blocks: int, running: int, window: bool
) -> None:
    states = (Paged(1, 8), Window(1, 8, 70)) if window else (Paged(1, 8),)
    arrivals = some(60, seed, rate, clients)
    Simulation(arrivals, blocks, running, 64, states=states).run()
    assert all(each.done > 0 for each in arrivals)


def test_throughput_and_waiting_by_users() -> None:
    """A line for each number of users: a change of policy is seen here before it is served."""
    print()
    speeds: dict[int, float] = {}
    for users in (1, 10, 100, 1000):
        arrivals = some(max(60, 2 * users), 3, 1.0, clients=users)
        done = Simulation(
            arrivals, 4000, 32, closed=users, audit=False, cost=Cost(0.02, 0.0015)
        ).run()
        speeds[users] = done.tokens / done.now
        print(
            f"{users:5} users: {speeds[users]:6.1f} tokens/s, first token after "
            f"{done.first_tokens(0.5):7.2f} s (p50) {done.first_tokens(0.99):7.2f} s (p99)"
        )
    assert speeds[10] > 2 * speeds[1]
    assert speeds[1000] > 0.8 * speeds[100], "a long line costs nothing"


def flood(priority: int = 0) -> list[Arrival]:
    """One client sends 300 requests at once."""
    return [Arrival(0.0, [number] * 100, 60, "greedy", priority) for number in range(300)]


def test_a_client_with_one_request_does_not_wait_for_another_ones_thousand() -> None:
    modest = [Arrival(5.0 + 3 * turn, [turn + 500] * 40, 10, "modest") for turn in range(10)]
    arrivals = flood() + modest
    Simulation(arrivals, 4000, 8).run()
    waits = [each.first - each.at for each in modest]
    assert max(waits) < 5.0, waits
    assert max(each.done for each in arrivals) > 60


def test_clients_share_alike_and_users_of_one_likewise() -> None:
    arrivals = flood()
    for number, arrival in enumerate(arrivals):
        arrival.client = "small" if number % 3 == 0 else f"large\nuser {int(number % 30 == 1)}"
    done = Simulation(arrivals, 4000, 8).run()
    early = done.served(0.4 * done.now)
    large = early["large\nuser 0"] + early["large\nuser 1"]
    assert 0.75 < early["small"] / large < 1.33
    assert early["large\nuser 1"] >= 9, "one of ten, but a user too: all of its requests are done"


def test_priority_goes_first_and_the_rest_is_not_starved() -> None:
    urgent = [Arrival(0.5 * number, [number] * 50, 30, "a", -5) for number in range(400)]
    patient = [Arrival(1.0, [900 + number] * 50, 30, "b", 7) for number in range(3)]
    arrivals = urgent + patient
    done = Simulation(arrivals, 4000, 2, cost=Cost(0.02, 0.002)).run()
    assert all(each.first - each.at > PATIENCE for each in patient), "the machine is full"
    assert max(each.done for each in patient) < 0.7 * done.now
    assert TURN > 1


def test_an_urgent_request_takes_the_place_of_another() -> None:
    arrivals = [Arrival(0.0, [number] * 50, 500, "a", 0) for number in range(4)]
    arrivals.append(Arrival(1.0, [99] * 50, 5, "b", -1))
    Simulation(arrivals, 4000, 4).run()
    assert arrivals[-1].done < 2.5


def test_a_prompt_slows_answers_by_at_most_two() -> None:
    """2,034 tokens arrive over seven streams; what a step takes is at most twice what it was."""
    arrivals = [Arrival(0.0, [number] * 20, 400, "a") for number in range(7)]
    arrivals.append(Arrival(2.0, list(range(2034)), 5, "b"))
    done = Simulation(arrivals, 4000, 16, 512).run()
    before = max(seconds for answers, tokens, seconds in done.steps if answers == tokens == 7)
    beside = [seconds for answers, tokens, seconds in done.steps if answers >= 7 and tokens > 8]
    assert len(beside) > 20
    late = sorted(beside)[: int(0.95 * len(beside))]
    assert max(late) <= 2.1 * before
    alone = 2034 * done.cost.row
    assert arrivals[-1].first - arrivals[-1].at < 4 * alone, "and the prompt goes on"
