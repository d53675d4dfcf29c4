"""Ends the engine when a step makes no progress: a hang is a failure like any other."""

from __future__ import annotations

import threading
from time import monotonic

from gristmill.engine.engine import Engine
from gristmill.errors import EngineError


class Watchdog:
    """Looks at an engine's clock a few times per ``timeout`` seconds. ``close`` stops it."""

    def __init__(self, engine: Engine, timeout: float) -> None:
        self._engine = engine
        self._timeout = timeout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gristmill-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = min(10.0, self._timeout / 4)
        while not self._stop.wait(pause):
            engine = self._engine
            still = monotonic() - engine.last_progress
            if engine.in_step and still > self._timeout:
                engine.fail(
                    EngineError(
                        f"A step has made no progress for {still:.0f} seconds "
                        f"(the limit is {self._timeout:g})."
                    )
                )
                return
