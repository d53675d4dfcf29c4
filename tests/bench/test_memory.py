from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from gristmill.bench.bandwidth import read_bandwidth
from gristmill.bench.card import card
from gristmill.bench.memory import listener, memory_of

MB = 1 << 20


def test_memory_of_a_process_counts_its_children() -> None:
    child = "b = b'x' * (60 << 20); print('there', flush=True); input()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        seen = memory_of(process.pid)
        process.communicate(b"\n", timeout=20)
    assert seen is not None
    assert 60 * MB < seen.pss <= seen.rss <= seen.peak_rss < 200 * MB


def test_of_no_process_nothing_is_known(tmp_path: Path) -> None:
    assert memory_of(1, tmp_path) is None
    assert listener(80, tmp_path) is None


def test_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener(port) == os.getpid()
    assert listener(port) != os.getpid()


def test_bandwidth_is_that_of_a_computer() -> None:
    assert 1e8 < read_bandwidth(2, mib=8, tries=3) < 1e13


def test_the_card_says_what_matters() -> None:
    found = card(threads=1, measure=False)
    needed = ("cpu", "isa", "cores", "threads", "governor", "python", "gristmill", "commit")
    assert all(str(found[name]) for name in needed)
