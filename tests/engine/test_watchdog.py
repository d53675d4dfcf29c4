"""A step that hangs is a failure."""

from __future__ import annotations

import threading
import time

import pytest

from gristmill.engine.watchdog import Watchdog
from gristmill.errors import EngineError
from gristmill.types import Request
from tests.engine.fakes import Toy, greedy


def test_a_hanging_step_is_reported_once() -> None:
    told: list[EngineError] = []
    with Toy(on_failure=told.append) as toy:
        dog = Watchdog(toy.engine, 0.1)
        toy.program.gate = threading.Event()
        toy.submit(Request("r", (1,), greedy(max_tokens=1)))
        deadline = time.monotonic() + 20
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(told) == 1
        assert "no progress" in str(told[0])
        with pytest.raises(EngineError):
            toy.submit(Request("late", (1,), greedy()))
        toy.program.gate.set()
        dog.close()
    assert len(told) == 1


def test_idling_and_working_are_no_failure() -> None:
    told: list[EngineError] = []
    with Toy(on_failure=told.append) as toy:
        dog = Watchdog(toy.engine, 1.0)
        toy.ask(Request("r", (1,), greedy(max_tokens=100, ignore_eos=True)))
        time.sleep(1.4)
        dog.close()
    assert told == []


def test_a_step_that_hangs_is_seen_in_the_stats() -> None:
    with Toy() as toy:
        assert toy.engine.stats().stalled == 0
        gate = toy.program.gate = threading.Event()
        toy.submit(Request("r", (1,), greedy(max_tokens=1)))
        deadline = time.monotonic() + 20
        while toy.engine.stats().stalled < 0.2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert 0.2 <= toy.engine.stats().stalled < 20
        gate.set()
        while toy.engine.stats().running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert toy.engine.stats().stalled == 0
