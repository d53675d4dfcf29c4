"""Where the server stands: loading, ready, draining or failed; and who is being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from gristmill.errors import NotFoundError, OverloadError
from gristmill.options import Options
from gristmill.serve.bridge import Bridge
from gristmill.serve.metrics import Metrics
from gristmill.serve.protocol import Served

T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the loading is. ``total`` 0 means that the end is not known yet."""

    stage: str = "starting"
    done: int = 0
    total: int = 0

    @property
    def fraction(self) -> float:
        """Share done of this stage, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


@dataclass
class State:
    """What all routes share. Written by the event loop and, for ``progress``, by the loader."""

    options: Options
    bridge: Bridge
    metrics: Metrics = field(default_factory=Metrics)
    progress: Progress = Progress()
    served: Served | None = None
    draining: bool = False
    failure: str | None = None
    started: float = field(default_factory=time.time)
    keep_alive: float = 15.0
    """Seconds of silence in a stream after which a comment is sent."""
    workers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="gristmill-text")
    )

    def open(self) -> None:
        """Raises ``OverloadError`` (503) while nothing new is taken in."""
        self.ready()

    def ready(self) -> Served:
        """The served model, or ``OverloadError`` (503) that says why there is none now."""
        if self.failure is not None:
            raise OverloadError(self.failure, retry_after=5)
        if self.draining:
            raise OverloadError("The server is shutting down.", retry_after=5)
        if self.served is None:
            raise OverloadError("Loading model", retry_after=1)
        return self.served

    def model(self, name: str | None) -> tuple[Served, str]:
        """The model called ``name`` and the name to answer with; ``NotFoundError`` (404)."""
        served = self.ready()
        if not name:
            return served, served.names[0]
        if name in served.names or self.options.any_model:
            return served, name
        known = ", ".join(f"'{each}'" for each in served.names)
        raise NotFoundError(
            f"The model '{name[:200]}' is not served here; served: {known}.", "model"
        )

    async def acquire(self, http: Request, name: str | None) -> tuple[Served, str]:
        """The model called ``name`` for as long as this exchange lasts, and the name to answer
        with. Raises NotFoundError (404), OverloadError (503)."""
        return self.model(name)

    async def in_worker(self, work: Callable[[P], T], argument: P) -> T:
        """Runs slow text work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, work, argument)
