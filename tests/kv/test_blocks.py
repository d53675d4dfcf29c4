"""The block manager against random lives of sequences."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from gristmill.errors import EngineError
from gristmill.kv.blocks import LET_GO, BlockManager, BlockTable, blocks_for
from gristmill.types import Paged, StateSpec, Window

FULL = Paged(1, 8)


class Counted:
    """A pool of nothing: numbers only."""

    def __init__(self, limits: Sequence[int], slab: int = 1) -> None:
        self.limits = list(limits)
        self.have = [0] * len(limits)
        self.slab = slab

    def blocks(self, group: int) -> int:
        return self.have[group]

    def limit(self, group: int) -> int:
        return self.limits[group]

    def grow(self, group: int, blocks: int) -> int:
        more = max(blocks, self.have[group] + self.slab)
        self.have[group] = max(self.have[group], min(more, self.limits[group]))
        return self.have[group]

    def cut(self, group: int, blocks: int) -> None:
        self.have[group] = blocks

    def copy(self, group: int, source: int, target: int) -> None:
        assert 0 <= source < self.have[group] > target >= 0 and source != target


def tokens_of(*runs: tuple[int, int]) -> array[int]:
    """Runs of (value, length)."""
    return array("i", [value for value, length in runs for _ in range(length)])


def fill(manager: BlockManager, tokens: array[int], salt: str = "") -> tuple[BlockTable, int]:
    """A sequence that computes all its tokens at once; its table and its hit."""
    table = manager.open(salt)
    hit = manager.match(table, tokens)
    assert manager.reserve(table, len(tokens))
    manager.commit(table, tokens, len(tokens))
    manager.check()
    return table, hit


def test_prefix_is_found_while_used_and_after() -> None:
    manager = BlockManager([FULL], Counted([64]))
    first, hit = fill(manager, tokens_of((1, 100)))
    assert hit == 0
    second, hit = fill(manager, tokens_of((1, 70), (2, 30)))
    assert hit == 64
    assert second.rows[0][:2] == first.rows[0][:2]
    assert second.rows[0][2] != first.rows[0][2]
    manager.release(first)
    manager.release(second)
    _, hit = fill(manager, tokens_of((1, 70), (2, 30)))
    assert hit == 96


def test_a_whole_prompt_is_never_a_hit() -> None:
    """One token at least must be computed, or there are no logits."""
    manager = BlockManager([FULL], Counted([64]))
    table, _ = fill(manager, tokens_of((1, 64)))
    manager.release(table)
    table, hit = fill(manager, tokens_of((1, 64)))
    assert hit == 32
    manager.release(table)
    _, hit = fill(manager, tokens_of((1, 65)))
    assert hit == 64


def test_salt_divides() -> None:
    manager = BlockManager([FULL], Counted([64]))
    fill(manager, tokens_of((1, 100)), "mine")
    assert fill(manager, tokens_of((1, 100)), "yours")[1] == 0
    assert fill(manager, tokens_of((1, 100)), "mine")[1] == 96
    manager.match(manager.open("\ud800"), tokens_of((1, 100)))  # a lone surrogate is a salt too


def test_equal_tokens_after_another_beginning_are_no_hit() -> None:
    manager = BlockManager([FULL], Counted([64]))
    fill(manager, tokens_of((1, 32), (7, 64)))
    assert fill(manager, tokens_of((2, 32), (7, 64)))[1] == 0


def test_cache_can_be_off() -> None:
    manager = BlockManager([FULL, Window(1, 8, 40)], Counted([64, 64]), prefix_cache=False)
    table, _ = fill(manager, tokens_of((1, 100)))
    manager.release(table)
    assert fill(manager, tokens_of((1, 100)))[1] == 0
    assert all(group.cached == 0 for group in manager.use())


def test_leaves_are_evicted_before_their_parents() -> None:
    manager = BlockManager([FULL], Counted([4]))
    table, _ = fill(manager, tokens_of((1, 97)))
    manager.release(table)
    other, _ = fill(manager, tokens_of((9, 40)))  # takes the fresh block and one cached one
    manager.release(other)
    assert fill(manager, tokens_of((1, 97)))[1] == 64


def test_memory_grows_for_sequences_and_up_to_half_for_the_cache() -> None:
    manager = BlockManager([FULL], Counted([40]))
    for value in range(30):
        table, _ = fill(manager, tokens_of((value, 32)))
        manager.release(table)
    assert (manager.use()[0].present, manager.use()[0].cached) == (20, 20)
    tables = [fill(manager, tokens_of((value, 32)))[0] for value in range(100, 140)]
    assert (manager.use()[0].present, manager.use()[0].used) == (40, 40)
    assert not manager.reserve(manager.open(), 1)
    for table in tables:
        manager.release(table)
    manager.check()


def test_least_recently_used_goes_first() -> None:
    manager = BlockManager([FULL], Counted([6]))
    for value in (1, 2, 3, 1):
        table, _ = fill(manager, tokens_of((value, 32)))
        manager.release(table)
    assert manager.use()[0].cached == 3
    table, _ = fill(manager, tokens_of((4, 32)))
    manager.release(table)
    hits = {}
    for value in (1, 3, 2):
        probe = manager.open()
        hits[value] = manager.match(probe, tokens_of((value, 33)))
        manager.release(probe)
    assert hits == {1: 32, 3: 32, 2: 0}


def test_full_pool_changes_nothing() -> None:
    manager = BlockManager([FULL, Window(1, 8, 64)], Counted([8, 4]))
    holder = manager.open()
    assert manager.reserve(holder, 100)
    before = manager.use()
    table = manager.open()
    assert not manager.reserve(table, 64)  # the window group has none left
    assert manager.use()[0].used == before[0].used
    manager.check()
    manager.release(holder)
    assert manager.reserve(table, 64)


@pytest.mark.parametrize("window", [1, 8, 31, 32, 33, 64, 65, 100])
def test_window_lets_go_exactly_what_is_out_of_sight(window: int) -> None:
    """BC-47: a token sees itself and the window − 1 before it."""
    manager = BlockManager([Window(1, 8, window)], Counted([64]))
    tokens = tokens_of((1, 300))
    table = manager.open()
    for computed in range(1, 300):
        assert manager.reserve(table, computed)
        manager.commit(table, tokens, computed)
        seen = range(max(0, computed - window + 1), computed)
        assert all(table.rows[0][position // 32] != LET_GO for position in seen)
        oldest = max(0, computed - window + 1) // 32
        assert all(block == LET_GO for block in table.rows[0][:oldest])
        assert manager.use()[0].used <= blocks_for(window) + 1
    manager.check()


def test_window_hit_needs_the_window_only() -> None:
    """BC-41: a hit at a point whose window is still there, whatever lies before."""
    window = Window(1, 8, 33)
    manager = BlockManager([FULL, window], Counted([64, 64]))
    table, _ = fill(manager, tokens_of((1, 128)))
    manager.release(table)
    table, hit = fill(manager, tokens_of((1, 129)))
    assert hit == 128
    assert list(table.rows[1][:3]) == [LET_GO] * 3
    assert table.rows[1][3] != LET_GO


def test_window_hit_falls_back_when_the_window_is_gone() -> None:
    window = Window(1, 8, 33)
    manager = BlockManager([FULL, window], Counted([64, 4]))
    table, _ = fill(manager, tokens_of((1, 96)))
    manager.release(table)
    other, _ = fill(manager, tokens_of((2, 100)))  # takes all four blocks of the window group
    manager.release(other)
    table, hit = fill(manager, tokens_of((1, 100)))
    assert hit == 0
    manager.release(table)


def test_window_hit_needs_the_whole_window() -> None:
    """Of the three blocks only the middle one is left: no point has its whole window."""
    manager = BlockManager([FULL, Window(1, 8, 65)], Counted([64, 3]))
    table, _ = fill(manager, tokens_of((1, 96)))  # lets go of block 0
    manager.release(table)  # block 2, then block 1
    other, _ = fill(manager, tokens_of((2, 64)))  # takes blocks 0 and 2
    manager.release(other)
    again = manager.open()
    assert manager.match(again, tokens_of((1, 97))) == 0


def test_a_table_starts_anew_after_release() -> None:
    """What a preempted sequence computes again is published and let go as before."""
    manager = BlockManager([FULL, Window(1, 8, 40)], Counted([64, 64]))
    tokens = tokens_of((1, 300))
    table, _ = fill(manager, tokens)
    manager.release(table)
    manager.clear_cache()
    for computed in range(1, 130):
        assert manager.reserve(table, computed)
        manager.commit(table, tokens, computed)
    assert table.starts == [0, 2]
    other = manager.open()
    assert manager.match(other, tokens) == 128


def test_check_finds_a_double_free() -> None:
    manager = BlockManager([FULL], Counted([8]))
    table, _ = fill(manager, tokens_of((1, 40)))
    rows = array("i", table.rows[0])
    manager.release(table)
    table.rows[0].extend(rows)
    with pytest.raises(EngineError):
        manager.release(table)


def test_check_finds_a_shared_writable_block() -> None:
    manager = BlockManager([FULL], Counted([8]), prefix_cache=False)
    first, second = manager.open(), manager.open()
    assert manager.reserve(first, 32)
    assert manager.reserve(second, 32)
    second.rows[0][0] = first.rows[0][0]
    with pytest.raises(EngineError):
        manager.check()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.integers(1, 100),
    st.integers(0, 31),
)
def test_hit_is_the_common_prefix(
    left: list[int], right: list[int], window: int, rest: int
) -> None:
    """With room for everything, the hit is the longest common run of whole blocks, less one
    token; with a window the blocks before it may be gone, but never those at the hit."""
    one = tokens_of(*[(value, 32) for value in left], (3, rest))
    two = tokens_of(*[(value, 32) for value in right], (3, rest))
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    expected = min(common * 32, (len(two) - 1) // 32 * 32)
    for states in ([FULL], [FULL, Window(1, 8, window)]):
        manager = BlockManager(states, Counted([64] * len(states)))
        table, _ = fill(manager, one)
        manager.release(table)
        again = manager.open()
        assert manager.match(again, two) == expected
        manager.check()


@dataclass(eq=False)  # two may look alike
class Life:
    """A sequence of the machine below."""

    tokens: array[int]
    table: BlockTable
    computed: int


class Lives(RuleBasedStateMachine):
    """Sequences come, compute in chunks, are preempted and go, in pools of any size."""

    lives = Bundle("lives")

    @initialize(
        windows=st.lists(st.sampled_from([None, 1, 20, 32, 50, 90]), min_size=1, max_size=3),
        limit=st.integers(3, 14),
        slab=st.integers(1, 5),
        cache=st.booleans(),
    )
    def begin(self, windows: list[int | None], limit: int, slab: int, cache: bool) -> None:
        states: list[StateSpec] = [
            FULL if window is None else Window(1, 8, window) for window in windows
        ]
        self.groups = len(states)
        self.manager = BlockManager(
            states, Counted([limit] * self.groups, slab), prefix_cache=cache
        )
        self.all: list[Life] = []

    @rule(
        target=lives,
        blocks=st.lists(st.integers(0, 1), max_size=5),
        rest=st.integers(1, 40),
    )
    def arrive(self, blocks: list[int], rest: int) -> Life:
        tokens = tokens_of(*[(value, 32) for value in blocks], (5, rest))
        table = self.manager.open()
        life = Life(tokens, table, self.manager.match(table, tokens))
        assert life.computed % 32 == 0
        if self.manager.reserve(table, len(tokens)):
            life.computed += self.manager.copy_tail(table, tokens, life.computed)
        assert life.computed < len(tokens)
        self.all.append(life)
        return life

    @rule(life=lives, count=st.integers(1, 70))
    def compute(self, life: Life, count: int) -> None:
        count = min(count, len(life.tokens) - life.computed)
        if count and self.manager.reserve(life.table, life.computed + count):
            life.computed += count
            self.manager.commit(life.table, life.tokens, life.computed)

    @rule(life=lives, token=st.integers(0, 1), count=st.integers(1, 33))
    def learn(self, life: Life, token: int, count: int) -> None:
        life.tokens.extend([token] * count)

    @rule(life=lives)
    def preempt(self, life: Life) -> None:
        self.manager.release(life.table)
        life.computed = self.manager.match(life.table, life.tokens)

    @rule(life=lives)
    def tell(self, life: Life) -> None:
        self.manager.note_tail(life.table, life.tokens, life.computed)

    @rule(keep=st.integers(0, 10))
    def give_back(self, keep: int) -> None:
        self.manager.shrink([keep] * self.groups)

    @rule(life=consumes(lives))
    def leave(self, life: Life) -> None:
        self.manager.note_tail(life.table, life.tokens, life.computed)
        self.manager.release(life.table)
        self.all.remove(life)

    @rule()
    def forget(self) -> None:
        self.manager.clear_cache()

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        for index, group in enumerate(self.manager.use()):
            named = {
                block for life in self.all for block in life.table.rows[index] if block != LET_GO
            }
            assert group.used == len(named)
            assert group.used + group.cached <= group.present <= group.limit

    def teardown(self) -> None:
        for life in self.all:
            self.manager.release(life.table)
        self.manager.check()
        assert all(group.used == 0 for group in self.manager.use())


Lives.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
