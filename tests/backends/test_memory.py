"""A block's bytes, taken out and put back: both back ends, every level."""

from __future__ import annotations

import os

import pytest

from gristmill.backends.cpu import native
from gristmill.backends.cpu.state import CpuMemory
from gristmill.backends.ops import Memory
from gristmill.backends.reference.state import ReferenceMemory
from gristmill.types import Paged, Window

STATES = [Paged(2, 4), Window(1, 6, 33), Paged(2, 4)]


def check(memory: Memory) -> None:
    for group in range(2):
        memory.resize(group, 3)
        size = memory.block_bytes(group)
        made = [os.urandom(size) for _ in range(3)]
        for block, data in enumerate(made):
            memory.fill(group, block, data)
        memory.resize(group, 40)
        assert [memory.dump(group, block) for block in range(3)] == made
        memory.copy(group, 1, 39)
        assert memory.dump(group, 39) == made[1]
        for wrong in (made[0][:-1], made[0] + b"x", b""):
            with pytest.raises(ValueError):
                memory.fill(group, 0, wrong)
        for block in (40, 1 << 40):
            with pytest.raises((IndexError, ValueError)):
                memory.dump(group, block)
            with pytest.raises((IndexError, ValueError)):
                memory.fill(group, block, made[0])


@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_reference(kv_dtype: str) -> None:
    check(ReferenceMemory(STATES, kv_dtype))


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "bf16"])
def test_cpu(level: str, kv_dtype: str) -> None:
    assert level == native.native().ISA
    check(CpuMemory(STATES, kv_dtype))
