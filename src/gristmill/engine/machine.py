"""What this process may use of the machine: memory and cores, as its cgroup and cpuset allow.

Sources: the kernel's admin guides ``cgroup-v2.rst`` and ``cgroup-v1/memory.rst``, ``proc(5)``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63; anything this large means the same."""


@dataclass(frozen=True, slots=True)
class Machine:
    """``memory_limit`` is the tightest of RAM and the cgroups', ``memory_available`` what can
    still be taken now without swapping; both in bytes. ``cores`` are physical ones."""

    memory_limit: int
    memory_available: int
    cores: int


def look(root: Path = Path("/")) -> Machine:
    """Read it all. ``root`` is the file system's root (tests put a small one there)."""
    total, available = _meminfo(root)
    limit = total
    for most, used in _memory_cgroups(root):
        limit = min(limit, most)
        available = min(available, max(0, most - used))
    return Machine(limit, min(available, limit), cores(root))


def cores(root: Path = Path("/"), cpus: set[int] | None = None) -> int:
    """Physical cores among the CPUs that this process may run on, within the cgroup's quota.

    ``cpus`` None asks the scheduler (``sched_getaffinity`` knows the cpuset).
    """
    allowed = _affinity() if cpus is None else cpus
    physical = {_siblings(root, cpu) for cpu in allowed}
    quota = min(_cpu_quotas(root), default=float(len(physical)))
    return max(1, min(len(physical), -int(-quota // 1)))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _siblings(root: Path, cpu: int) -> str:
    """A name that the hardware threads of one core share."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):
        text = _read(topology / name)
        if text:
            return text
    return f"cpu {cpu}"


def _meminfo(root: Path) -> tuple[int, int]:
    """Total and available bytes."""
    values: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    total = values.get("MemTotal", 0) or _sysconf_memory()
    return total, values.get("MemAvailable", total)


def _sysconf_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 4 << 30


def _memory_cgroups(root: Path) -> list[tuple[int, int]]:
    """(limit, bytes used that cannot be dropped) of every cgroup above this process."""
    found: list[tuple[int, int]] = []
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= NO_LIMIT:
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        found.append((limit, max(0, used - _droppable(folder))))
    return found


def _droppable(folder: Path) -> int:
    """Bytes of file cache, which the kernel takes back when memory is wanted."""
    cache = 0
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("active_file", "inactive_file") and value.strip().isdigit():
            cache += int(value)
    return cache


def _cpu_quotas(root: Path) -> list[float]:
    """CPUs' worth of time that each cgroup above this process allows."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [
                _read(folder / "cpu.cfs_quota_us"),
                _read(folder / "cpu.cfs_period_us"),
            ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup folders for a controller, from its own up to the mount."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            mount = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = mount / path.lstrip("/")
        while True:
            folders.append(folder)
            if folder == mount or mount not in folder.parents:
                break
            folder = folder.parent
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None
