"""Memory and cores, read from small made-up file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.engine.machine import cores, look

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total: int, available: int) -> str:
    return f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB\n"


def test_no_cgroup(tmp_path: Path) -> None:
    machine = look(write(tmp_path, {"proc/meminfo": meminfo(16 * GIB, 9 * GIB)}))
    assert (machine.memory_limit, machine.memory_available) == (16 * GIB, 9 * GIB)


def test_cgroup_v2_takes_the_tightest_level(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(64 * GIB, 60 * GIB),
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{5 * GIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 7\ninactive_file {GIB}\nactive_file {GIB}\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
    }
    machine = look(write(tmp_path, files))
    assert machine.memory_limit == 8 * GIB
    assert machine.memory_available == 5 * GIB  # 8, less 5 in use, of which 2 can be dropped


def test_cgroup_v2_of_a_container_sees_its_own_as_root(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(64 * GIB, 60 * GIB),
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    }
    assert look(write(tmp_path, files)).memory_available == 2 * GIB


def test_cgroup_v1(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(64 * GIB, 60 * GIB),
        "proc/self/cgroup": "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
        "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes": f"{GIB}\n",
    }
    machine = look(write(tmp_path, files))
    assert (machine.memory_limit, machine.memory_available) == (4 * GIB, 3 * GIB)


def test_a_limit_below_what_is_used_is_nothing_left(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": meminfo(64 * GIB, 60 * GIB),
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
    }
    assert look(write(tmp_path, files)).memory_available == 0


def topology(groups: list[str]) -> dict[str, str]:
    """``groups[cpu]`` names the hardware threads that share cpu's core."""
    base = "sys/devices/system/cpu/cpu"
    return {f"{base}{i}/topology/core_cpus_list": text for i, text in enumerate(groups)}


def test_hyperthreads_are_one_core(tmp_path: Path) -> None:
    root = write(tmp_path, topology(["0,4", "1,5", "2,6", "3,7"] * 2))
    assert cores(root, set(range(8))) == 4
    assert cores(root, {0, 4, 5}) == 2
    assert cores(root, {3}) == 1


def test_unknown_topology_counts_cpus(tmp_path: Path) -> None:
    assert cores(tmp_path, {0, 1, 2}) == 3


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("10000 100000", 1),
    ],
)
def test_cpu_quota(tmp_path: Path, quota: str, expected: int) -> None:
    files = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": quota}
    assert cores(write(tmp_path, files), set(range(8))) == expected


def test_cpu_quota_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    assert cores(write(tmp_path, files), set(range(8))) == 2


def test_this_machine() -> None:
    machine = look()
    assert 0 < machine.memory_available <= machine.memory_limit
    assert machine.cores >= 1


def test_nonsense_is_survived(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: lots\nweird\n\n",
        "proc/self/cgroup": "x\n0::/../../..\n:::\n",
        "sys/fs/cgroup/memory.max": "abc",
        "sys/fs/cgroup/cpu.max": "a b c",
    }
    machine = look(write(tmp_path, files))
    assert machine.memory_limit > 0
