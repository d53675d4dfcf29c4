"""A worker process: started, asked in lines of JSON, ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import gristmill
from gristmill.bench.memory import Memory, memory_of
from gristmill.errors import GristmillError

PEERS = {"llama.cpp": ("llamacpp.py", "xllamacpp")}
"""Name → the worker's file in ``peers/``, the module that its Python must have."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How a side is started."""

    name: str
    command: tuple[str, ...]


OURS = Spec("gristmill", (sys.executable, "-m", "gristmill.bench.worker"))


def peer(name: str, python: str) -> Spec:
    """A peer's worker under its own Python."""
    script = Path(gristmill.__file__).parent / "bench" / "peers" / PEERS[name][0]
    return Spec(name, (python, str(script)))


def missing(name: str, python: str) -> str | None:
    """Why a peer cannot be measured, or None if it can."""
    module = PEERS[name][1]
    try:
        done = subprocess.run(
            [python, "-c", f"import {module}"],
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python} does not run: {error}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"{python} has no {module}: {last}"
    return None


class Side:
    """One running worker. Raises GristmillError when it ends without an answer."""

    def __init__(self, spec: Spec, config: dict[str, Any]) -> None:
        self.name = spec.name
        # Closed by close(), like the process that writes into it.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._born = time.perf_counter()
        self._process = subprocess.Popen(
            [*spec.command, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.hello = self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """One command, its answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the reading will say why
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._read()

    def spans(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[float, float]]:
        """Seconds from submission to first and last token of each prompt, run together."""
        answer = self.ask({"op": "run", "prompts": prompts, "tokens": tokens})
        return [(first, last) for first, last in answer["spans"]]

    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self._born

    def memory(self) -> Memory | None:
        """Of the process now."""
        return memory_of(self._process.pid)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it gave no reason"])[-1]
        raise GristmillError(f"The worker of {self.name} ended: {last.strip()}")
