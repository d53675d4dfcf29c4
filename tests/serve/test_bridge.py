"""The hop from an engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from gristmill.serve.bridge import Bridge
from gristmill.serve.protocol import EngineStats
from gristmill.types import Delta, Request, SamplingParams, Sink


class Resting:
    """An engine without a step: the test hands out the deltas and rests in its stead."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.sinks: list[Sink] = []
        self.rest: Callable[[], None] = lambda: None

    def submit(self, request: Request, sink: Sink) -> None:
        self.sinks.append(sink)

    def abort(self, request_id: str) -> None:
        self.events.append("abort")

    def stats(self) -> EngineStats:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def at_rest(self, call: Callable[[], None]) -> None:
        self.rest = call

    def give_way(self, on: bool) -> None:
        self.events.append("gives way" if on else "goes on")


def on_a_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_an_engine_gives_way_until_what_it_handed_out_is_written() -> None:
    async def play() -> list[str]:
        events: list[str] = []
        engine = Resting(events)
        bridge = Bridge(asyncio.get_running_loop())
        ticket = bridge.open(engine)
        ticket.submit([Request("a", (1,), SamplingParams())])

        async def write() -> None:
            for _ in range(2):
                for delta in await ticket.batch():
                    events.append(f"wrote {delta.text}")

        def step(text: str) -> None:
            engine.sinks[0](Delta("a", 0, (1,), text))
            engine.rest()

        writing = asyncio.create_task(write())
        await asyncio.sleep(0)
        on_a_thread(engine.rest)  # with nothing to tell
        for text in "xy":
            on_a_thread(lambda text=text: step(text))
            while events[-1:] != ["goes on"]:
                await asyncio.sleep(0)
        await writing
        ticket.close()
        return events

    once = "gives way", "wrote {}", "goes on"
    assert asyncio.run(asyncio.wait_for(play(), 10)) == [
        each.format(text) for text in "xy" for each in once
    ] + ["abort"]
