"""A machine whose memory others take and give back while the engine runs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.engine import memory
from gristmill.engine.machine import look
from gristmill.engine.memory import Headroom, reserve_of
from gristmill.types import Request
from tests.engine.fakes import FULL, Toy, greedy, make_plan, oracle

BLOCK = 32 * 8


class Cgroup:
    """A small file system of a cgroup with a limit. What the toy's memory takes and what
    ``others`` do is written into it whenever it is read."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.others = 0
        self.toy: Toy | None = None
        self.most = 0
        folder = root / "sys/fs/cgroup/box"
        folder.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable: 9999999 kB\n")
        (root / "proc/self/cgroup").write_text("0::/box\n")
        (folder / "memory.stat").write_text("active_file 0\n")
        self.folder = folder
        self.allow(limit)

    def allow(self, limit: int) -> None:
        (self.folder / "memory.max").write_text(f"{limit}\n")
        self.limit = limit

    def used(self) -> int:
        mine = 0 if self.toy is None else sum(map(len, self.toy.memory.data)) * BLOCK
        self.most = max(self.most, self.others + mine - self.limit)
        return self.others + mine

    def available(self) -> int:
        (self.folder / "memory.current").write_text(f"{self.used()}\n")
        return look(self.root).memory_available


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looks at once, and often."""
    monkeypatch.setattr(memory, "EVERY", 0.0)
    monkeypatch.setattr(memory, "IDLE", 0.1)
    monkeypatch.setattr(memory, "_FRESH", 0.0)
    yield


def toy_in(cgroup: Cgroup, reserve: int = 2 * BLOCK, blocks: int = 64) -> Toy:
    plan = make_plan((FULL,), blocks=[blocks], context=256, max_running=6)
    toy = Toy(plan, headroom=Headroom(cgroup.available, reserve))
    cgroup.toy = toy
    return toy


def prompts(count: int, length: int = 100) -> list[tuple[int, ...]]:
    draw = random.Random(4)
    return [tuple(draw.choices(range(1, 61), k=length)) for _ in range(count)]


def test_growth_stays_below_the_cgroups_limit(tmp_path: Path) -> None:
    """The plan allows 64 blocks, the cgroup has memory for 20: requests take turns, none fails."""
    cgroup = Cgroup(tmp_path, 20 * BLOCK)
    with toy_in(cgroup) as toy:
        answers = [
            toy.submit(Request(str(n), prompt, greedy(max_tokens=20, ignore_eos=True)))
            for n, prompt in enumerate(prompts(8))
        ]
        for prompt, answer in zip(prompts(8), answers, strict=True):
            assert answer.wait().tokens() == oracle(prompt, (FULL,), 20, banned=(0,))
    assert cgroup.most <= 0, "it was never above"


def test_the_cache_is_shed_then_requests_queue_and_all_are_answered(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, 60 * BLOCK)
    with toy_in(cgroup) as toy:
        for prompt in prompts(5):
            toy.ask(Request("r", prompt, greedy(max_tokens=3)))
        assert toy.engine.stats().kv[0].cached >= 15
        answers = [
            toy.submit(Request(str(n), prompt, greedy(max_tokens=60, ignore_eos=True)))
            for n, prompt in enumerate(prompts(6, 60))
        ]
        cgroup.allow(14 * BLOCK)  # somebody halves the container's memory, and halves it again
        for prompt, answer in zip(prompts(6, 60), answers, strict=True):
            assert answer.wait().tokens() == oracle(prompt, (FULL,), 60, banned=(0,))
        assert toy.engine.stats().kv[0].present <= 14
        assert toy.engine.stats().preemptions > 0


def test_others_memory_is_waited_for(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, 40 * BLOCK)
    cgroup.others = 38 * BLOCK
    with toy_in(cgroup) as toy:
        answer = toy.submit(Request("r", prompts(1)[0], greedy(max_tokens=2, ignore_eos=True)))
        time.sleep(0.3)
        assert not answer.done() and toy.engine.failure is None
        cgroup.others = 0
        assert answer.wait().tokens() == oracle(prompts(1)[0], (FULL,), 2, banned=(0,))


def test_what_holds_nothing_is_given_back_at_rest(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, 1000 * BLOCK)
    with toy_in(cgroup) as toy:
        toy.ask(Request("r", prompts(1, 110)[0], greedy(max_tokens=3, ignore_eos=True)))
        assert toy.engine.stats().kv[0].present == 64, "a slab is larger than the toy's pool"
        end = time.monotonic() + 10
        while toy.engine.stats().kv[0].present > 4 and time.monotonic() < end:
            time.sleep(0.02)
        assert toy.engine.stats().kv[0].present == 4
        got = toy.ask(
            Request("r", prompts(1, 110)[0], greedy(max_tokens=3, ignore_eos=True))
        ).last()
        assert got.timings is not None and got.timings.cached_tokens == 109, "the cache is kept"


def test_reserve() -> None:
    assert reserve_of(1 << 30) == 64 << 20
    assert reserve_of(100 << 30) == (100 << 30) // 50
