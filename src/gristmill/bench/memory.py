"""Memory of a process and its children, and who listens on a port: from ``/proc`` (proc(5)).

RSS counts every resident page in full; PSS shares a page among those who map it, so that PSS
of several processes may be added. Nothing here raises: what cannot be read is None.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``peak_rss`` is the most since the process began (VmHWM)."""

    rss: int
    pss: int
    peak_rss: int


def memory_of(pid: int, proc: Path = Path("/proc")) -> Memory | None:
    """The process ``pid`` and its descendants together; None if it is gone or not readable."""
    own = _one(pid, proc)
    if own is None:
        return None
    all_of_them = [own, *(each for p in _descendants(pid, proc) if (each := _one(p, proc)))]
    return Memory(
        sum(each.rss for each in all_of_them),
        sum(each.pss for each in all_of_them),
        sum(each.peak_rss for each in all_of_them),
    )


def _one(pid: int, proc: Path) -> Memory | None:
    status = _fields(proc / str(pid) / "status")
    if "VmRSS" not in status:
        return None
    rollup = _fields(proc / str(pid) / "smaps_rollup")
    rss = status["VmRSS"]
    return Memory(rss, rollup.get("Pss", rss), max(rss, status.get("VmHWM", 0)))


def _fields(path: Path) -> dict[str, int]:
    """Lines like ``VmRSS:   1234 kB`` as bytes."""
    found: dict[str, int] = {}
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _descendants(pid: int, proc: Path) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _processes(proc):
        after_name = _read(proc / str(entry) / "stat").rpartition(")")[2].split()
        if len(after_name) > 1:
            children[int(after_name[1])].append(entry)
    found: list[int] = []
    waiting = list(children[pid])
    while waiting:
        found.append(waiting.pop())
        waiting.extend(children[found[-1]])
    return found


def _processes(proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def listener(port: int, proc: Path = Path("/proc")) -> int | None:
    """The process that listens on a TCP port of this machine, if it may be known."""
    inodes = _listening_sockets(port, proc)
    if not inodes:
        return None
    for pid in sorted(_processes(proc)):
        folder = proc / str(pid) / "fd"
        try:
            for name in os.listdir(folder):
                if os.readlink(folder / name) in inodes:
                    return pid
        except OSError:
            continue  # it ended, or belongs to somebody else
    return None


def _listening_sockets(port: int, proc: Path) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != _LISTENING:
                continue
            if int(words[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{words[9]}]")
    return found
