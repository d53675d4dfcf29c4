"""The CPU back end: native kernels chosen for this processor at import, played as a program."""

from __future__ import annotations

import os

from gristmill.backends.cpu.backend import CpuBackend


def open_backend(threads: int | None = None) -> CpuBackend:
    """Open the back end. ``threads`` None: one per processor this process may run on."""
    return CpuBackend(threads or len(os.sched_getaffinity(0)))
