"""When the bytes grow, and how many blocks a plan gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ResourceError
from gristmill.kv.pools import Need, Pools
from gristmill.types import Paged, Window

FULL = Paged(1, 8)


class Bytes:
    """Memory that counts; more than ``ceiling`` blocks the machine has not."""

    def __init__(self, size: int, ceiling: int = 10_000) -> None:
        self.size = size
        self.ceiling = ceiling
        self.have = 0
        self.resizes = 0

    def block_bytes(self, group: int) -> int:
        del group
        return self.size

    def blocks(self, group: int) -> int:
        del group
        return self.have

    def resize(self, group: int, blocks: int) -> None:
        del group
        self.resizes += 1
        if blocks > self.ceiling:
            raise ResourceError("no more")
        self.have = blocks

    def copy(self, group: int, source: int, target: int) -> None: ...

    def dump(self, group: int, block: int) -> bytes: ...

    def fill(self, group: int, block: int, data: bytes) -> None: ...


def test_grows_in_slabs_up_to_the_limit() -> None:
    memory = Bytes(1000)
    pools = Pools(memory, [100], slab_bytes=10_000)
    assert pools.blocks(0) == 0
    assert pools.grow(0, 1) == 10
    assert pools.grow(0, 25) == 25
    assert pools.grow(0, 99) == 99
    assert pools.grow(0, 500) == 100
    calls = memory.resizes
    assert pools.grow(0, 500) == 100
    assert memory.resizes == calls
    assert pools.used_bytes() == 100_000


def test_growth_is_not_quadratic() -> None:
    memory = Bytes(1000)
    pools = Pools(memory, [100_000], slab_bytes=1)
    memory.ceiling = 200_000
    while memory.have < 100_000:
        pools.grow(0, memory.have + 1)
    assert memory.resizes < 80


@pytest.mark.parametrize(("ceiling", "got"), [(0, 0), (7, 7), (12, 10)])
def test_a_small_machine_is_a_full_pool(ceiling: int, got: int) -> None:
    """A slab that cannot be had is tried again as what is needed at least."""
    pools = Pools(Bytes(1000, ceiling), [100], slab_bytes=10_000)
    for want in range(1, 10):
        pools.grow(0, want)
    assert pools.blocks(0) == got
    assert pools.grow(0, ceiling + 1) == got or ceiling == 12


def need_of(window: int, full: int, windowed: int, running: int, step: int) -> Need:
    return Need((FULL, Window(1, 8, window)), (full, windowed), running, step)


needs = st.builds(
    need_of,
    st.integers(1, 4000),
    st.integers(1, 100_000),
    st.integers(1, 5000),
    st.integers(1, 64),
    st.integers(1, 600),
)


@given(needs, st.integers(1, 1 << 34))
def test_tokens_within_is_the_most_that_fits(need: Need, limit: int) -> None:
    tokens = need.tokens_within(limit, 1 << 20)
    assert tokens == 0 or need.bytes(tokens) <= limit
    if tokens < 1 << 20:
        assert need.bytes(tokens + 1) > limit


@given(needs, st.integers(1, 100_000))
def test_a_window_group_has_room_for_the_running(need: Need, tokens: int) -> None:
    """Each running sequence sees its window; its blocks need not begin or end where it does."""
    full, windowed = need.blocks(tokens)
    window = need.states[1]
    assert isinstance(window, Window)
    assert full * 32 >= tokens
    assert windowed <= full
    at_once = need.running * (window.window + 2 * 31) + need.step_tokens
    assert windowed == full or windowed * 32 >= at_once
