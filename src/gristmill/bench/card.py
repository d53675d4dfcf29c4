"""The machine's card: what a figure must not be read without."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import gristmill
from gristmill.backends.cpu.native import native
from gristmill.bench import bandwidth
from gristmill.engine.machine import look
from gristmill.errors import GristmillError

Card = dict[str, str | int | float]
"""Name → value, in the order in which it is shown."""


def card(threads: int | None = None, measure: bool = True) -> Card:
    """This machine and this gristmill. ``measure`` reads memory for a second or two."""
    machine = look()
    threads = threads or machine.cores
    found: Card = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "isa": _isa(),
        "cores": machine.cores,
        "logical cpus": os.cpu_count() or 1,
        "threads": threads,
        "governor": _governor(),
        "memory GiB": round(machine.memory_limit / 2**30, 1),
        "load before": _load(),
    }
    if measure:
        found["read bandwidth GB/s"] = round(bandwidth.read_bandwidth(threads) / 1e9, 1)
        found["bandwidth by"] = bandwidth.method(threads)
    return found | {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "gristmill": gristmill.__version__,
        "commit": _commit(),
        "numpy": _version("numpy"),
    }


def _cpu_name() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _isa() -> str:
    try:
        return str(native().ISA)
    except GristmillError:
        return "no native kernels here"


def _governor() -> str:
    text = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    return text or "not readable"


def _load() -> float:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return 0.0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _commit() -> str:
    """Of the source tree that runs, with "+changes" if it differs; "release" outside of one."""
    here = Path(gristmill.__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    inside = _git(here, "ls-files", "--error-unmatch", "__init__.py")
    if head is None or inside is None:
        return "release"
    changes = _git(here, "status", "--porcelain", "-uno", ":/src", ":/csrc", ":/CMakeLists.txt")
    return head + ("+changes" if changes else "")


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            check=False,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
