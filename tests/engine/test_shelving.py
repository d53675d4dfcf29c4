"""Prefixes on disk: engines that come and go over one folder, files cut and spoilt."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from gristmill.errors import ResourceError, UsageError
from gristmill.kv.shelf import Shelf
from gristmill.types import Request, Slot, StateSpec, Window
from tests.engine.fakes import FULL, Toy, greedy, make_plan, oracle

BLOCK = 32 * 8
STATES: list[tuple[StateSpec, ...]] = [
    (FULL,),
    (FULL, Window(1, 8, 40)),
    (Window(1, 8, 90), FULL),
    (Slot(7), FULL),
]
SYSTEM = tuple(random.Random(7).choices(range(1, 61), k=200))


def shelf_in(folder: Path, groups: int = 1, limit: int = 1 << 20, model: bytes = b"m") -> Shelf:
    return Shelf(folder, model * 32, [BLOCK] * groups, limit)


def blocks_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*-*") if not path.name.startswith("."))


def ask(
    toy: Toy, tail: tuple[int, ...], states: tuple[StateSpec, ...], salt: str = ""
) -> tuple[int, ...]:
    prompt = (*SYSTEM, *tail)
    answer = toy.ask(Request("r", prompt, greedy(max_tokens=5, ignore_eos=True), cache_salt=salt))
    assert answer.tokens() == oracle(prompt, states, 5, banned=(0,))
    timings = answer.last().timings
    assert timings is not None
    return (timings.cached_tokens,)


def wait_for_files(folder: Path, count: int) -> None:
    end = time.monotonic() + 10
    while len(blocks_in(folder)) < count:
        assert time.monotonic() < end, "not written"
        time.sleep(0.01)


@pytest.mark.parametrize("states", STATES)
def test_a_shared_prefix_survives_the_engine(states: tuple[StateSpec, ...], tmp_path: Path) -> None:
    groups = len(states)
    with Toy(make_plan(states), shelf=shelf_in(tmp_path, groups)) as toy:
        assert ask(toy, (5, 5), states) == (0,)
        time.sleep(0.1)
        assert blocks_in(tmp_path) == [], "what is said once is not written"
        assert ask(toy, (6, 6), states)[0] >= 192
        wait_for_files(tmp_path, 6)
    with Toy(make_plan(states), shelf=shelf_in(tmp_path, groups)) as toy:
        assert ask(toy, (7, 7), states) == (192,)
        assert ask(toy, (8, 8), states)[0] >= 192
    with Toy(make_plan(states), shelf=shelf_in(tmp_path, groups, model=b"n")) as toy:
        assert ask(toy, (7, 7), states) == (0,), "another model's are not its own"


def test_without_room_in_memory_it_computes(tmp_path: Path) -> None:
    with Toy(shelf=shelf_in(tmp_path)) as toy:
        ask(toy, (5,), (FULL,))
        ask(toy, (6,), (FULL,))
        wait_for_files(tmp_path, 6)
    with Toy(make_plan(blocks=[8], context=256), shelf=shelf_in(tmp_path)) as toy:
        busy = toy.submit(Request("b", (1, 2), greedy(max_tokens=120, ignore_eos=True)))
        ask(toy, (7,), (FULL,))
        busy.wait()


def test_salted_prompts_are_never_written(tmp_path: Path) -> None:
    with Toy(shelf=shelf_in(tmp_path)) as toy:
        for tail in ((5,), (6,), (7,)):
            ask(toy, tail, (FULL,), salt="mine")
        time.sleep(0.1)
        assert blocks_in(tmp_path) == []


@pytest.mark.parametrize("spoil", ["cut", "flip", "empty", "gone", "tokens"])
def test_spoilt_files_are_dropped(spoil: str, tmp_path: Path) -> None:
    with Toy(shelf=shelf_in(tmp_path)) as toy:
        ask(toy, (5,), (FULL,))
        ask(toy, (6,), (FULL,))
        wait_for_files(tmp_path, 6)
    shelf = shelf_in(tmp_path)
    for path in blocks_in(tmp_path)[2:]:
        data = path.read_bytes()
        if spoil == "gone":
            path.unlink()
        elif spoil == "cut":
            path.write_bytes(data[:-7])
        elif spoil == "empty":
            path.write_bytes(b"")
        else:
            at = 45 if spoil == "tokens" else len(data) - 50
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with Toy(shelf=shelf) as toy:
        assert ask(toy, (7,), (FULL,))[0] in (0, 32, 64)
        assert ask(toy, (8,), (FULL,))[0] >= 192
        wait_for_files(tmp_path, 6)
    with Toy(shelf=shelf_in(tmp_path)) as toy:
        assert ask(toy, (9,), (FULL,)) == (192,), "they were written again"


def test_the_folder_stays_within_its_bound(tmp_path: Path) -> None:
    size = 8 + 32 + 128 + BLOCK + 32
    with Toy(shelf=shelf_in(tmp_path, limit=4 * size)) as toy:
        ask(toy, (5,), (FULL,))
        ask(toy, (6,), (FULL,))
        wait_for_files(tmp_path, 4)
        time.sleep(0.1)
        assert len(blocks_in(tmp_path)) == 4
    # Another model's files count too, and go when this one needs the room.
    other = Shelf(tmp_path, b"x" * 32, [BLOCK], 2 * size)
    assert len(blocks_in(tmp_path)) == 2
    other.close()


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    shelf_in(tmp_path).close()
    folder = next(tmp_path.iterdir())
    part = folder / f".{'0' * 32}-1.part"
    part.write_bytes(b"half")
    (folder / "something else").write_bytes(b"")
    shelf_in(tmp_path).close()
    assert not part.exists() and (folder / "something else").exists()


def test_one_server_at_a_time_and_private(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path / "new")
    with pytest.raises(UsageError, match="in use by another server"):
        shelf_in(tmp_path / "new")
    key = next((tmp_path / "new").iterdir()) / "key"
    assert key.stat().st_mode & 0o77 == 0 and key.parent.stat().st_mode & 0o77 == 0
    shelf.close()
    again = shelf_in(tmp_path / "new")
    assert again.key == shelf.key
    again.close()
    if os.geteuid():
        (tmp_path / "shut").mkdir(mode=0o500)
        with pytest.raises(ResourceError):
            shelf_in(tmp_path / "shut")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        shelf_in(tmp_path / "file")
