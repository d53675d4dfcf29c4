"""Slots: their numbers, and what lies in the cache for them, saved, restored and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from gristmill.engine import prefixes as prefixes_room
from gristmill.engine.lines import Lines
from gristmill.errors import EngineError, FormatError, OverloadError, RequestError
from gristmill.kv.snapshot import Snapshot
from gristmill.types import Paged, Request, SlotView, StateSpec, Window
from tests.engine.fakes import EOS, FULL, Toy, greedy, make_plan, oracle

T = TypeVar("T")

LAYOUTS: list[tuple[StateSpec, ...]] = [
    (FULL,),
    (FULL, Window(1, 8, 40)),
    (FULL, Window(1, 8, 1), Window(1, 8, 33)),
]
PROMPT = tuple(1 + at % 50 for at in range(150))


def do(toy: Toy, work: Callable[[], T]) -> T:
    return toy.engine.between(work).result(10)


def views(toy: Toy) -> list[SlotView]:
    return do(toy, toy.engine.slots.views)


def cached(toy: Toy, prompt: tuple[int, ...], **fields: object) -> int:
    request = Request(f"r{time.monotonic_ns()}", prompt, greedy(max_tokens=3))
    request = replace(request, **fields)
    timings = toy.ask(request).last().timings
    assert timings is not None
    return timings.cached_tokens


@pytest.mark.parametrize("states", LAYOUTS)
def test_saved_erased_restored(states: tuple[StateSpec, ...]) -> None:
    """The toy checks every block that it reads: a wrong one would raise or change the text."""
    with Toy(make_plan(states)) as toy:
        wanted = oracle(PROMPT, states, 40)
        ask = Request("first", PROMPT, greedy(max_tokens=40), slot=3)
        got = toy.ask(ask)
        assert got.tokens() == wanted and got.last().slot == 3
        held = (len(PROMPT) + len(wanted) - 1) // 32 * 32
        prefixes = toy.engine.prefixes
        saved = prefixes.save(3, partial(do, toy))
        assert tuple(saved.tokens) == (PROMPT + wanted)[:held]
        assert len(saved.blocks[0]) == held // 32
        assert do(toy, lambda: prefixes.erase(3)) == held
        assert do(toy, lambda: prefixes.erase(3)) == 0
        with pytest.raises(RequestError, match="nothing to save"):
            prefixes.save(3, partial(do, toy))
        assert cached(toy, PROMPT, cache=False) == 0
        prefixes.restore(5, saved, partial(do, toy))
        again = toy.ask(Request("second", PROMPT + wanted, greedy(max_tokens=20)))
        assert again.tokens() == oracle(PROMPT + wanted, states, 20)
        timings = again.last().timings
        assert timings is not None and timings.cached_tokens == held
        # The slot whose text it goes on with: the restored one.
        assert again.last().slot == 5
        assert toy.used() == [0] * len(states)


def test_saved_and_restored_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes_room, "BATCH", 1)
    states = LAYOUTS[1]
    with Toy(make_plan(states, max_running=3)) as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0))
        long = [
            toy.submit(
                Request(f"l{at}", (at, 2, 3), greedy(max_tokens=250, ignore_eos=True), slot=at)
            )
            for at in (1, 2)
        ]
        for _ in range(3):
            saved = toy.engine.prefixes.save(0, partial(do, toy))
            assert do(toy, lambda: toy.engine.prefixes.erase(0)) == 128
            toy.engine.prefixes.restore(0, saved, partial(do, toy))
            assert cached(toy, PROMPT) == 128
        for at, answer in zip((1, 2), long, strict=True):
            wanted = oracle((at, 2, 3), states, 250, banned=(EOS,))
            assert answer.wait().tokens() == wanted


def test_a_shorter_prompt_finds_its_window() -> None:
    states: tuple[StateSpec, ...] = (FULL, Window(1, 8, 64))
    with Toy(make_plan(states)) as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0))
        saved = toy.engine.prefixes.save(0, partial(do, toy))
        do(toy, lambda: toy.engine.prefixes.erase(0))
        toy.engine.prefixes.restore(0, saved, partial(do, toy))
        for length in (129, 128, 97, 70):
            got = toy.ask(Request(f"b{length}", PROMPT[:length], greedy(max_tokens=9), n=1))
            timings = got.last().timings
            assert timings is not None and timings.cached_tokens in (
                length - 1,
                (length - 1) // 32 * 32,
            )
            assert got.tokens() == oracle(PROMPT[:length], states, 9)


def test_restored_into_another_engine() -> None:
    states = LAYOUTS[1]
    with Toy(make_plan(states)) as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0))
        saved = toy.engine.prefixes.save(0, partial(do, toy))
    with Toy(make_plan(states)) as toy:
        toy.engine.prefixes.restore(1, saved, partial(do, toy))
        assert cached(toy, PROMPT) == 128
        got = toy.ask(Request("b", PROMPT, greedy(max_tokens=30)))
        assert got.tokens() == oracle(PROMPT, states, 30)


def test_restore_changes_nothing_when_it_fails() -> None:
    with Toy(make_plan(LAYOUTS[1], blocks=(6, 6), max_running=2)) as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0))
        saved = toy.engine.prefixes.save(0, partial(do, toy))
        before = toy.engine.stats().kv
        full, window = saved.blocks
        for blocks in ((full[1:], window), (full, window[-1:]), (full, full * 2), (full,)):
            wrong = Snapshot(saved.tokens, blocks)
            with pytest.raises(FormatError):
                toy.engine.prefixes.restore(1, wrong, partial(do, toy))
        longer = Snapshot(saved.tokens * 4, tuple(each * 4 for each in saved.blocks))
        with pytest.raises(OverloadError):
            toy.engine.prefixes.restore(1, longer, partial(do, toy))
        assert [group.used for group in toy.engine.stats().kv] == [g.used for g in before]
        assert views(toy)[1].tokens == ()


def test_no_cache_is_used_nor_kept() -> None:
    with Toy() as toy:
        assert cached(toy, PROMPT, cache=False, slot=2) == 0
        assert toy.engine.stats().kv[0].cached == 0
        with pytest.raises(RequestError):
            toy.engine.prefixes.save(2, partial(do, toy))
        assert cached(toy, PROMPT) == 0
        assert cached(toy, PROMPT) == len(PROMPT) - 1
        assert cached(toy, PROMPT, cache=False) == 0


def test_what_has_a_salt_is_not_saved() -> None:
    with Toy() as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0, cache_salt="mine"))
        with pytest.raises(RequestError, match="salt"):
            toy.engine.prefixes.save(0, partial(do, toy))
        assert do(toy, lambda: toy.engine.prefixes.erase(0)) == 128


def test_without_a_prefix_cache() -> None:
    with Toy(make_plan(prefix_cache=False)) as toy:
        toy.ask(Request("a", PROMPT, greedy(max_tokens=1), slot=0))
        with pytest.raises(RequestError, match="switched off"):
            toy.engine.prefixes.save(0, partial(do, toy))
        with pytest.raises(RequestError, match="switched off"):
            do(toy, lambda: toy.engine.prefixes.erase(0))


def test_numbers_are_those_asked_for_while_free() -> None:
    with Toy(make_plan(max_running=3)) as toy:
        long = toy.submit(Request("a", PROMPT, greedy(max_tokens=300, ignore_eos=True), slot=1))
        long.wait_tokens(1)
        view = views(toy)[1]
        assert view.busy and view.prompt_tokens == len(PROMPT) and view.tokens[:150] == PROMPT
        other = toy.ask(Request("b", (7, 8, 9), greedy(max_tokens=1), slot=1))
        assert other.last().slot in (0, 2)
        with pytest.raises(OverloadError, match="busy"):
            toy.engine.prefixes.save(1, partial(do, toy))
        with pytest.raises(OverloadError, match="busy"):
            do(toy, lambda: toy.engine.prefixes.erase(1))
        toy.engine.abort("a")
        assert long.wait().last().finish == "abort"
        view = views(toy)[1]
        assert not view.busy and view.tokens[:150] == PROMPT
        several = toy.ask(Request("c", (1, 2), greedy(max_tokens=9), n=3))
        assert {several.last(index).slot for index in range(3)} == {0, 1, 2}


def test_work_between_steps_fails_with_the_engine() -> None:
    toy = Toy()
    with pytest.raises(ZeroDivisionError):
        do(toy, lambda: 1 // 0)
    toy.program.fail = RuntimeError("broken")
    toy.submit(Request("a", (1, 2), greedy(max_tokens=3))).wait()
    with pytest.raises(EngineError):
        do(toy, toy.engine.slots.views)
    toy = Toy()
    toy.engine.close()
    with pytest.raises(OverloadError):
        do(toy, toy.engine.slots.views)


def test_progress_of_a_prompt() -> None:
    with Toy(make_plan(step_tokens=48)) as toy:
        toy.ask(Request("a", PROMPT[:64], greedy(max_tokens=1)))
        got = toy.ask(Request("b", PROMPT, greedy(max_tokens=2), progress=True))
        told = [delta.progress for delta in got.deltas[0] if delta.progress is not None]
        assert [each.total for each in told] == [150] * len(told)
        assert {each.cached for each in told} == {64}
        done = [each.done for each in told]
        assert done == sorted(set(done)) and done[-1] == 150 and len(done) > 1
        assert got.tokens() == oracle(PROMPT, (Paged(1, 8),), 2)


def test_lines() -> None:
    def joined(parts: list[str], indent: int) -> tuple[str, bool]:
        lines, out = Lines(indent, None), ""
        for part in parts:
            text, ended = lines.push(part)
            out += text
            if ended:
                return out, True
        return out, False

    text = "x = 1\n    y\n\t\t\t\tz\n  end\n"
    for indent, kept in ((0, text), (4, "x = 1\n    y\n\t\t\t\tz\n  "), (5, "x = 1\n    ")):
        whole = joined([text], indent)
        assert whole == (kept, indent > 0)
        for cut in range(len(text)):
            assert joined([text[:cut], text[cut:]], indent) == whole
        assert joined(list(text), indent) == whole
    assert joined(["a\n\n    b"], 4) == ("a\n", True)
    late = Lines(0, 0.0)
    time.sleep(0.001)
    assert late.push("abc") == ("abc", False)
    assert late.push("d\n") == ("d\n", True)
