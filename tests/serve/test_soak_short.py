"""``benchmarks/soak.py``'s clients for some seconds, against a real engine in this process.

Here, unlike there, the event loop and the engine can be looked into when all have gone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.serve import test_real_engine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import soak
import soak_streams

real = test_real_engine.real
"""The fixture: a server with a real engine on a tiny random model."""

POOLS = ("gristmill-text", "gristmill-grammar", "gristmill-masks", "asyncio")
"""Threads that are made when they are first needed, and stay: each pool has its bound."""


def tasks(real: Any) -> int:
    """How many tasks the server's event loop has."""
    found: Future[int] = Future()
    real.call(lambda: found.set_result(len(asyncio.all_tasks(real.loop))))
    return found.result(10)


def within(seconds: float, true: Any) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(120)
def test_a_crowd_leaves_nothing_behind(real: Any) -> None:
    before, threads = tasks(real), set(threading.enumerate())
    ledger = soak.Ledger()
    asyncio.run(soak.crowd(real.url, 12, 6.0, ledger, seed=1, longest=5))
    assert ledger.faults == []
    assert sum(ledger.done.values()) > 40 and len(ledger.done) > 8, ledger.done
    asyncio.run(soak.settle(real.url))
    assert within(10, lambda: not real.state.bridge.tickets)
    assert within(10, lambda: tasks(real) <= before)
    assert all(group.used == 0 for group in real.engine.stats().kv)
    made = {each.name for each in set(threading.enumerate()) - threads}
    assert all(name.startswith(POOLS) for name in made), made


CHUNK = 'data: {"id":"a","choices":[{"index":0,"finish_reason":%s}]}'
DONE = "data: [DONE]"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [CHUNK % '"stop"'],
        [CHUNK % "null", DONE],
        [CHUNK % '"stop"', CHUNK % "null", DONE],
        [CHUNK % '"stop"', 'data: {"error":{}}', DONE],
        [CHUNK % '"stop"', DONE, DONE],
        [CHUNK % '"stop"', (CHUNK % "null").replace('"a"', '"b"'), DONE],
    ],
)
def test_the_soak_sees_what_is_wrong_with_a_stream(lines: list[str]) -> None:
    soak_streams.openai([CHUNK % "null", CHUNK % '"stop"', DONE])
    with pytest.raises(soak_streams.Fault):
        soak_streams.openai(lines)


def test_the_soak_sees_what_is_wrong_with_other_dialects() -> None:
    good = {
        soak_streams.llama: ['data: {"stop":false}', 'data: {"stop":true}'],
        soak_streams.ollama: ['{"done":false}', '{"done":true,"done_reason":"stop"}'],
        soak_streams.anthropic: [
            line
            for event, more in (
                ("message_start", ""),
                ("content_block_start", ',"index":0'),
                ("content_block_delta", ',"index":0'),
                ("content_block_stop", ',"index":0'),
                ("message_delta", ',"delta":{"stop_reason":"end_turn"}'),
                ("message_stop", ""),
            )
            for line in (f"event: {event}", f'data: {{"type":"{event}"{more}}}')
        ],
        soak_streams.responses: [
            "event: response.created",
            'data: {"type":"response.created","sequence_number":0}',
            "event: response.output_text.delta",
            'data: {"type":"response.output_text.delta","sequence_number":1,"delta":"a"}',
            "event: response.completed",
            'data: {"type":"response.completed","sequence_number":2,"response":{"output":'
            '[{"content":[{"type":"output_text","text":"a"}]}]}}',
        ],
    }
    for check, lines in good.items():
        check(lines)
        step = 2 if lines[0].startswith("event") else 1
        for cut in range(step, len(lines), step):  # cut short, or without something in between
            with pytest.raises((soak_streams.Fault, IndexError)):
                check(lines[:cut])
        with pytest.raises(soak_streams.Fault):
            check([*lines, *lines[:step]])
