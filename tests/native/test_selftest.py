"""Runs the kernels' self-tests: natively, under sanitizers, and on emulated processors.

An emulated processor dies on an instruction it does not have, so a level that passes on the
least processor it promises keeps its promise.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.native.build import (
    ARM_LEVELS,
    X86_LEVELS,
    Builder,
    MissingToolError,
    Program,
    self_tests,
)

HOST = platform.machine()
HOST_LEVELS = ("scalar", *ARM_LEVELS) if HOST == "aarch64" else X86_LEVELS

# processor of the emulator -> what it must be found to run, best first
ARM_PROCESSORS = {
    "max": ("i8mm", "dotprod", "neon", "scalar"),
    "neoverse-n1": ("dotprod", "neon", "scalar"),
    "cortex-a72": ("neon", "scalar"),
}
X86_PROCESSORS = {"Haswell": ("avx2", "scalar"), "Nehalem": ("scalar",)}
# the least processor that runs a level
LEAST = {"neon": "cortex-a72", "dotprod": "neoverse-n1", "i8mm": "max"} | dict.fromkeys(
    ("scalar", "avx2"), "Haswell"
)

TIMEOUT = 240.0

# The first tests wait for their programs to be compiled.
pytestmark = pytest.mark.timeout(1200)


def missing(reason: str) -> None:
    """Skip, or fail where everything must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def built(builder: Builder, program: Program) -> Path:
    """The program, or a skip that says what to install."""
    try:
        return builder.path(program)
    except MissingToolError as error:
        missing(str(error))
        raise


def emulator(machine: str, processor: str) -> list[str]:
    """The command before a program that runs it on an emulated processor."""
    name = f"qemu-{machine}-static"
    if shutil.which(name) is None:
        missing(f"{name} is not installed (Debian: apt-get install qemu-user-static)")
    return [name, "-cpu", processor]


def execute(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end, both outputs in one."""
    # Leaks of a process that ends are no news; ptrace is not everywhere allowed.
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        env=environment,
        check=False,
    )


def passes(command: Sequence[str]) -> None:
    """The self-test ends with success."""
    done = execute(command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}"


def levels(command: Sequence[str]) -> tuple[str, ...]:
    """What the detection program prints; the emulator's warnings are elsewhere, on stderr."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())


@cache
def host_levels(detect: Path) -> tuple[str, ...]:
    """The levels of the processor under us."""
    return levels([str(detect)])


def programs(chosen: Sequence[str], variant: str = "plain") -> list[Program]:
    """Every self-test for these levels."""
    return [Program(test, level, variant) for level in chosen for test in self_tests()]


def emulated(chosen: Sequence[str]) -> list[ParameterSet]:
    """Every self-test for these levels; those marked slow do not depend on the level's dots.

    All run always on neon, the one level here that no run without an emulator has covered.
    """
    return [
        pytest.param(
            program,
            marks=()
            if program.level == "neon" or program.test in ("isa_test", "linear_test")
            else pytest.mark.slow,
        )
        for program in programs(chosen)
    ]


def label(value: object) -> str | None:
    """Names of cases: avx2-linear_test."""
    return f"{value.level}-{value.test}" if isinstance(value, Program) else None


def on_host(builder: Builder, program: Program) -> None:
    """Skip a level that this processor has not."""
    have = host_levels(built(builder, Program("detect", "scalar")))
    if program.level not in have:
        pytest.skip(f"this processor runs {', '.join(have)}")


@pytest.mark.parametrize("program", programs(HOST_LEVELS), ids=label)
def test_native(builder: Builder, program: Program) -> None:
    on_host(builder, program)
    passes([str(built(builder, program))])


@pytest.mark.sanitize
@pytest.mark.parametrize("program", programs(HOST_LEVELS, "sanitized"), ids=label)
def test_address_and_undefined_behaviour(builder: Builder, program: Program) -> None:
    on_host(builder, program)
    passes([str(built(builder, program)), "--quick"])


@pytest.mark.sanitize
@pytest.mark.parametrize("program", [Program("threads_test", "scalar", "threads")], ids=label)
def test_races(builder: Builder, program: Program) -> None:
    passes([str(built(builder, program)), "--quick"])


@pytest.mark.skipif(HOST != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize("program", emulated(("scalar", "avx2")), ids=label)
def test_on_emulated_x86(builder: Builder, program: Program) -> None:
    command = emulator("x86_64", LEAST[program.level])
    passes([*command, str(built(builder, program)), "--quick"])


@pytest.mark.parametrize("program", emulated(ARM_LEVELS), ids=label)
def test_on_emulated_arm(builder: Builder, program: Program) -> None:
    command = emulator("aarch64", LEAST[program.level])
    passes([*command, str(built(builder, program)), "--quick"])


@pytest.mark.parametrize("processor", ARM_PROCESSORS)
def test_levels_found_on_arm(builder: Builder, processor: str) -> None:
    command = emulator("aarch64", processor)
    detect = built(builder, Program("detect", "neon"))
    assert levels([*command, str(detect)]) == ARM_PROCESSORS[processor]


@pytest.mark.parametrize("processor", ARM_PROCESSORS)
def test_every_level_found_on_arm_runs(builder: Builder, processor: str) -> None:
    command = emulator("aarch64", processor)
    for level in ARM_PROCESSORS[processor]:
        if level != "scalar":
            passes([*command, str(built(builder, Program("isa_test", level))), "--quick"])


@pytest.mark.skipif(HOST != "x86_64", reason="needs x86-64")
@pytest.mark.parametrize("processor", X86_PROCESSORS)
def test_levels_found_on_x86(builder: Builder, processor: str) -> None:
    command = emulator("x86_64", processor)
    detect = built(builder, Program("detect", "scalar"))
    assert levels([*command, str(detect)]) == X86_PROCESSORS[processor]


@pytest.mark.parametrize(
    ("machine", "processor", "program"),
    [
        ("aarch64", "neoverse-n1", Program("isa_test", "i8mm")),
        ("aarch64", "cortex-a72", Program("isa_test", "dotprod")),
        pytest.param(
            *("x86_64", "Haswell", Program("isa_test", "avx512")),
            marks=pytest.mark.skipif(HOST != "x86_64", reason="needs x86-64"),
        ),
    ],
    ids=lambda value: label(value) or str(value),
)
def test_a_level_dies_where_it_is_not_found(
    builder: Builder, machine: str, processor: str, program: Program
) -> None:
    """So the emulator is a judge of promises, and detection is what keeps us alive."""
    command = emulator(machine, processor)
    done = execute([*command, str(built(builder, program)), "--quick"])
    assert done.returncode in (-signal.SIGILL, 128 + signal.SIGILL), done.stdout


def test_levels_found_here_agree_with_the_kernel(builder: Builder) -> None:
    found = host_levels(built(builder, Program("detect", "scalar")))
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("no /proc/cpuinfo")
    flags = set(cpuinfo.read_text().replace(":", " ").split())
    needs = {
        "avx512": "avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 avx2 fma f16c",
        "avx2": "avx2 fma f16c",
        "i8mm": "asimddp i8mm bf16",
        "dotprod": "asimddp",
        "neon": "asimd",
        "scalar": "",
    }
    assert found == tuple(level for level, need in needs.items() if flags >= set(need.split()))
