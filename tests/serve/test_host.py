"""The host of several models: who is loaded when, who makes room, who waits."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from gristmill.errors import GristmillError, NotFoundError, OverloadError, SourceError
from gristmill.serve.host import Entry, Host, LoadError, Model, Opened, Report
from gristmill.serve.protocol import Served
from tests.serve.conftest import fake_chat
from tests.serve.fake_engine import CONTEXT, FakeTokenizer

T = TypeVar("T")


class FakeOpener:
    """Opens models whose reference is their need: ``"b:40"``. Counts what is held."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.held = 0
        self.most = 0
        self.loads: list[str] = []
        self.closed: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = 0
        self._lock = threading.Lock()

    def need(self, model: Model, report: Report) -> int:
        if model.reference.startswith("missing"):
            raise SourceError("There is no such file.")
        if model.reference.startswith("bug"):
            raise KeyError("a bug")
        return int(model.reference.split(":")[1])

    def load(self, model: Model, room: int | None, report: Report) -> Opened:
        report("packing", 1, 4)
        need = self.need(model, report)
        with self._lock:
            self.at_once += 1
            assert self.at_once == 1, "one load at a time"
        self.gate.wait(10)
        time.sleep(self.delay)
        assert room is None or need <= room
        with self._lock:
            self.at_once -= 1
            self.held += need
            self.most = max(self.most, self.held)
        self.loads.append(model.names[0])

        def close() -> None:
            time.sleep(self.delay)
            with self._lock:
                self.held -= need
            self.closed.append(model.names[0])

        served = Served(model.names, _NoEngine(), FakeTokenizer(), fake_chat, CONTEXT, 1)
        return Opened(served, need, close)


class _NoEngine:
    """Nobody asks it anything."""

    def submit(self, request: object, sink: object) -> None:
        raise AssertionError

    def abort(self, request_id: str) -> None:
        raise AssertionError

    def stats(self) -> Any:
        raise AssertionError

    def close(self) -> None:
        return


def run(work: Callable[[], Coroutine[Any, Any, T]], seconds: float = 20) -> T:
    """An event loop for one test."""
    return asyncio.run(asyncio.wait_for(work(), seconds))


def make(
    opener: FakeOpener, *needs: int, pinned: bool = False, **options: Any
) -> tuple[Host, list[Entry]]:
    """A host of models a, b, c, … with these needs; the first one pinned, perhaps."""
    host = Host(opener, **options)
    entries = [
        host.add(Model(f"{name}:{need}", (name,)), pinned=pinned and at == 0)
        for at, (name, need) in enumerate(zip("abcdefgh", needs, strict=False))
    ]
    return host, entries


async def until(what: Callable[[], bool]) -> None:
    """Waits for something that other tasks bring about."""
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.002)


def test_loaded_on_first_use_and_once() -> None:
    async def work() -> None:
        opener = FakeOpener(0.02)
        host, (a, b) = make(opener, 10, 10)
        got = await asyncio.gather(*(host.acquire(a) for _ in range(5)), host.acquire(b))
        assert opener.loads == ["a", "b"] and a.leases == 5
        assert got[0] is a.served and got[5] is b.served

    run(work)


def test_the_one_used_longest_ago_makes_room() -> None:
    async def work() -> None:
        opener = FakeOpener()
        host, (a, b, c) = make(opener, 40, 40, 40, budget=100)
        for each in (a, b, a):
            await host.acquire(each)
            host.release(each)
        await host.acquire(c)
        assert opener.closed == ["b"] and a.stage == "loaded" and c.stage == "loaded"
        assert opener.most <= 100

    run(work)


def test_a_busy_model_is_let_finish() -> None:
    async def work() -> None:
        opener = FakeOpener()
        host, (a, b) = make(opener, 60, 60, budget=100)
        await host.acquire(a)
        other = asyncio.create_task(host.acquire(b))
        await until(lambda: a.leaving)
        assert a.stage == "loaded" and not other.done()
        again = asyncio.create_task(host.acquire(a))  # comes later: b has its turn first
        await asyncio.sleep(0.02)
        assert not again.done()
        host.release(a)
        await other
        assert a.opened is None and not again.done()
        host.release(b)
        await again
        assert opener.loads == ["a", "b", "a"] and opener.most <= 100

    run(work)


def test_a_pinned_model_stays() -> None:
    async def work() -> None:
        opener = FakeOpener()
        host, (a, b, c, d) = make(opener, 50, 40, 40, 60, pinned=True, budget=100, keep=0.01)
        await host.acquire(a)
        host.release(a, 0.0)
        await host.acquire(b)
        host.release(b, None)
        await host.acquire(c)
        await asyncio.sleep(0.05)
        assert a.stage == "loaded" and opener.closed == ["b"]
        assert not await host.unload(a)
        with pytest.raises(LoadError, match=r"needs 0 MB of memory"):
            await host.acquire(d)
        assert d.stage == "unloaded" and a.stage == "loaded" and c.stage == "loaded"

    run(work)


def test_keep_alive() -> None:
    async def work() -> None:
        opener = FakeOpener()
        host, (a, b, c) = make(opener, 1, 1, 1, keep=0.05)
        for each, keep in ((a, "default"), (b, None), (c, 0.0)):
            await host.acquire(each)
            host.release(each, keep)  # type: ignore[arg-type]
        assert a.expires is not None and b.expires is None
        await until(lambda: c.stage == "unloaded")
        assert a.stage == "loaded"
        await until(lambda: a.stage == "unloaded")
        await asyncio.sleep(0.1)
        assert b.stage == "loaded" and opener.closed == ["c", "a"]
        await host.acquire(a)
        await asyncio.sleep(0.1)  # in use: the time does not run
        assert a.stage == "loaded" and a.expires is None

    run(work)


def test_failures_are_those_of_who_asked() -> None:
    async def work() -> None:
        opener = FakeOpener()
        host = Host(opener)
        missing = host.add(Model("missing", ("m",)))
        bug = host.add(Model("bug", ("u",)))
        fine = host.add(Model("x:1", ("x",)))
        with pytest.raises(LoadError, match="'m' could not be loaded: There is no such file"):
            await host.acquire(missing)
        with pytest.raises(LoadError, match="KeyError"):
            await host.acquire(bug)
        await host.acquire(fine)
        assert missing.waiting == bug.waiting == 0 and missing.leases == 0

    run(work)


def test_waiting_has_an_end() -> None:
    async def work() -> None:
        opener = FakeOpener()
        opener.gate.clear()
        host, (a, b) = make(opener, 1, 1, load_timeout=0.05)
        with pytest.raises(OverloadError, match=r"still being loaded \(packing, 25%\)"):
            await host.acquire(a)
        with pytest.raises(OverloadError, match="waits to be loaded"):
            await host.acquire(b)
        opener.gate.set()
        await until(lambda: a.stage == "loaded")
        assert a.waiting == 0
        await asyncio.sleep(0.02)
        assert b.stage == "unloaded", "nobody waits for it any more"

    run(work)


def test_a_client_that_leaves_does_not_wait() -> None:
    class LeftError(Exception):
        pass

    async def work() -> None:
        opener = FakeOpener()
        opener.gate.clear()
        host, (a,) = make(opener, 1)
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def gone() -> Awaitable[None]:
            return left

        waiting = asyncio.create_task(host.acquire(a, gone))
        await until(lambda: a.stage == "loading")
        left.set_exception(LeftError())
        with pytest.raises(LeftError):
            await waiting
        assert a.waiting == 0 and a.leases == 0
        opener.gate.set()
        await until(lambda: a.stage == "loaded")

    run(work)


def test_the_end_is_told_to_those_who_wait() -> None:
    async def work() -> None:
        opener = FakeOpener()
        opener.gate.clear()
        host, (a, b) = make(opener, 1, 1)
        waiting = [asyncio.create_task(host.acquire(each)) for each in (a, b)]
        await until(lambda: a.stage == "loading")
        host.stop(OverloadError("The server is shutting down."))
        for each in waiting:
            with pytest.raises(OverloadError, match="shutting down"):
                await each
        opener.gate.set()

    run(work)


def test_names() -> None:
    host = Host()
    host.add(Model("hf:o/r:Q8_0", ("r-q8_0", "hf:o/r:Q8_0")))
    host.add(Model("x.gguf", ("x", "r-q8_0", "x:7b")))
    assert host.entries[1].names == ("x", "x:7b")
    for name in ("r-q8_0", "r-q8_0:latest", "hf.co/o/r:Q8_0", "huggingface.co/o/r:Q8_0"):
        found = host.find(name)
        assert found is host.entries[0], name
    assert host.find("x:7b") is host.entries[1]
    assert host.find("x:8b") is None and host.find("") is None and host.find(":latest") is None
    assert host.first is None


def test_the_store_is_looked_into() -> None:
    async def work() -> None:
        stored: list[Model] = []
        host = Host(FakeOpener(), store=lambda: list(stored))
        named = host.add(Model("a", ("a",), path="/a"))
        with pytest.raises(NotFoundError, match="served: 'a'"):
            await host.look_up("b")
        stored += [Model("pypi:b", ("b",), path="/b", stored=True), Model("x", ("x",), path="/a")]
        assert (await host.look_up("b")).model.reference == "pypi:b"
        assert [entry.names for entry in host.entries] == [("a",), ("b",)]
        stored.clear()
        await host.refresh()
        assert host.entries == [named]

    run(work)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_keeps_the_budget_and_starves_nobody(seed: int) -> None:
    chance = random.Random(seed)
    needs = [chance.randint(10, 60) for _ in range(5)]

    async def client(host: Host, entries: list[Entry]) -> None:
        for _ in range(12):
            entry = chance.choice(entries)
            try:
                served = await host.acquire(entry)
            except GristmillError as error:
                assert isinstance(error, LoadError)  # larger than what the pinned one leaves
                continue
            assert entry.served is served and entry.leases > 0
            await asyncio.sleep(chance.random() * 0.003)
            assert entry.served is served, "never unloaded while in use"
            host.release(entry, chance.choice([0.0, 0.001, None, "default"]))  # type: ignore[arg-type]

    async def work() -> None:
        opener = FakeOpener()
        host, entries = make(opener, *needs, pinned=seed % 2 == 0, budget=100, keep=0.002)
        await asyncio.gather(*(client(host, entries) for _ in range(12)))
        assert opener.most <= 100
        assert all(entry.leases == entry.waiting == 0 and not entry.leaving for entry in entries)
        await until(lambda: all(e.stage in ("loaded", "unloaded") for e in entries))
        host.close()
        assert opener.held == 0

    run(work, 60)
