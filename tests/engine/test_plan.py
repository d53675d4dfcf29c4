"""What options come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.engine.machine import Machine
from gristmill.engine.plan import Facts, resolve
from gristmill.errors import ResourceError, UsageError
from gristmill.options import Options
from gristmill.types import Paged, Window

MIB = 1 << 20
FACTS = Facts(
    name="toy",
    architecture="llama",
    trained_context=8192,
    states=(Paged(2, 64), Window(2, 64, 512)),
    block_bytes=(MIB // 4, MIB // 2),
    weights_bytes=100 * MIB,
    backend="toy",
    threads=2,
)
MACHINE = Machine(16 << 30, 12 << 30, 2)


def test_defaults_are_the_models_own() -> None:
    plan = resolve(Options(), FACTS, MACHINE)
    assert plan.context == 8192
    assert plan.max_running <= plan.step_tokens
    assert plan.kv_tokens >= plan.context
    assert plan.notes == ()


def test_context_and_pool_are_two_numbers() -> None:
    """-c is what each request may have, whatever the number of requests."""
    one = resolve(Options(context=4096, max_running=1), FACTS, MACHINE)
    many = resolve(Options(context=4096, max_running=16), FACTS, MACHINE)
    assert one.context == many.context == 4096
    assert many.kv_tokens > one.kv_tokens


def test_more_than_the_model_was_trained_on_is_capped_and_said() -> None:
    plan = resolve(Options(context=100_000), FACTS, MACHINE)
    assert plan.context == 8192
    assert any("100000" in note and "8192" in note for note in plan.notes)


def test_a_small_machine_shortens_the_default_context_and_says_so() -> None:
    plan = resolve(Options(), FACTS, replace(MACHINE, memory_available=1700 * MIB))
    assert 256 <= plan.context < 8192
    assert plan.context == plan.kv_tokens
    assert any(str(plan.context) in note for note in plan.notes)
    assert str(plan.context) in plan.describe()


def test_a_context_that_was_asked_for_is_not_cut_in_silence() -> None:
    with pytest.raises(ResourceError, match="8000"):
        resolve(Options(context=8000, kv_bytes=10 * MIB), FACTS, MACHINE)


def test_a_machine_too_small_is_an_error() -> None:
    with pytest.raises(ResourceError):
        resolve(Options(), FACTS, replace(MACHINE, memory_available=1600 * MIB + 2 * MIB))


@pytest.mark.parametrize(
    "options",
    [
        Options(context=0),
        Options(context=-5),
        Options(max_running=0),
        Options(max_running=1 << 40),
        Options(step_tokens=0),
        Options(step_tokens=1 << 40),
        Options(kv_bytes=0),
        Options(threads=0),
        Options(max_waiting=-1),
        Options(step_timeout=0.0),
        Options(step_timeout=float("nan")),
    ],
)
def test_options_out_of_range(options: Options) -> None:
    with pytest.raises(UsageError):
        resolve(options, FACTS, MACHINE)


@given(
    st.integers(1, 1 << 35),
    st.integers(1, 20_000),
    st.integers(1, 300),
    st.integers(1, 2000),
)
def test_a_plan_keeps_its_promises(
    kv_bytes: int, context: int, max_running: int, step_tokens: int
) -> None:
    options = Options(
        context=context,
        max_running=max_running,
        step_tokens=step_tokens,
        kv_bytes=kv_bytes,
    )
    try:
        plan = resolve(options, FACTS, MACHINE)
    except ResourceError:
        return
    assert plan.kv_bytes <= kv_bytes
    assert plan.context == min(context, 8192) or context > 8192
    assert plan.context <= plan.kv_tokens
    assert plan.kv_blocks[0] * 32 >= plan.context
    assert plan.step_tokens >= plan.max_running == max_running
    assert plan.kv_blocks[1] * 32 >= min(plan.context, 512 + plan.step_tokens)
