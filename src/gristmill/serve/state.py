"""Where the server stands: loading, ready, draining or failed; and who is being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from gristmill.errors import OverloadError, RequestError
from gristmill.options import Options
from gristmill.serve.auth import Keys
from gristmill.serve.bridge import Bridge
from gristmill.serve.exchange import KEY, Exchange
from gristmill.serve.host import Alive, Entry, Host, Keep, Model, Opened, Progress
from gristmill.serve.library import Library
from gristmill.serve.metrics import Metrics
from gristmill.serve.protocol import Served

__all__ = ["Progress", "State"]

T = TypeVar("T")
P = TypeVar("P")


@dataclass
class State:
    """What all routes share. Written by the event loop and, for ``progress``, by the loader."""

    options: Options
    bridge: Bridge
    metrics: Metrics = field(default_factory=Metrics)
    host: Host = field(default_factory=Host)
    library: Library | None = None
    """The models on this machine, for the routes that show, fetch and delete them."""
    pulls: set[object] = field(default_factory=set[object])
    """Downloads that requests have begun."""
    progress: Progress = field(default_factory=Progress)
    """Of the start: until the first model is there."""
    draining: bool = False
    failure: str | None = None
    started: float = field(default_factory=time.time)
    keep_alive: float = 15.0
    """Seconds of silence in a stream after which a comment is sent."""
    workers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="gristmill-text")
    )

    def __post_init__(self) -> None:
        self.keep_alive = self.options.ping_interval
        self.keys = Keys(self.options.api_keys)
        self.host.on_loaded = self.metrics.attach
        self.host.on_unloading = self.metrics.detach

    @property
    def served(self) -> Served | None:
        """The first model, if it is loaded."""
        first = self.host.first
        return first.served if first is not None else None

    @served.setter
    def served(self, served: Served) -> None:
        """A server of one model that was loaded elsewhere, and stays."""
        first = self.host.first
        if first is None:
            first = self.host.add(Model("", served.names), pinned=True)
        self.host.put(first, Opened(served, 0, lambda: None))

    @property
    def starting(self) -> bool:
        """Whether the model that stays loaded is still on its way."""
        first = self.host.first
        if first is None or not first.pinned:
            return not (self.host.entries or self.options.all_models)
        return first.opened is None

    def open(self) -> None:
        """Raises ``OverloadError`` (503) while nothing new is taken in."""
        if self.failure is not None:
            raise OverloadError(self.failure, retry_after=5)
        if self.draining:
            raise OverloadError("The server is shutting down.", retry_after=5)
        if self.starting:
            raise OverloadError("Loading model", retry_after=1)

    def ready(self) -> Served:
        """The first model (else the one used last), or ``OverloadError`` (503) that says why
        there is none now. For what any loaded model can answer at once."""
        self.open()
        loaded = [entry for entry in self.host.entries if entry.free]
        best = max(loaded, key=lambda entry: (entry.pinned, entry.used), default=None)
        if best is None or best.served is None:
            raise OverloadError("No model is loaded; a request that names one loads it.", 5)
        return self.served or best.served

    def model(self, name: str | None) -> tuple[Served, str]:
        """The loaded model called ``name`` and the name to answer with; ``NotFoundError`` (404),
        ``OverloadError`` (503) when it is not loaded. Only for what neither waits nor lasts."""
        if not name:
            served = self.ready()
            return served, served.names[0]
        self.open()
        entry = self.host.find(name)
        if entry is None:
            if not self.options.any_model:
                raise self.host.unknown(name)
            return self.ready(), name
        if entry.served is None:
            raise OverloadError(f"The model '{entry.names[0]}' is not loaded.", retry_after=5)
        return entry.served, name

    async def entry(self, name: str | None) -> Entry:
        """The model called ``name``, loaded or not. Raises NotFoundError, and RequestError when
        none is named and there are several to choose from."""
        self.open()
        first = self.host.first
        if name and (first is None or not self.options.any_model or self.host.find(name)):
            return await self.host.look_up(name)
        if first is None:
            if not self.host.entries:
                raise self.host.unknown(name or "")
            names = ", ".join(f"'{entry.names[0]}'" for entry in self.host.entries)
            raise RequestError(f"'model' must name one of {names}.", "model")
        return first

    async def acquire(
        self, http: Request, name: str | None, keep: Keep = "default"
    ) -> tuple[Served, str]:
        """The model called ``name`` for as long as this exchange lasts, and the name to answer
        with. A model that is not loaded is loaded, and waited for. Call it when the body is read.

        ``keep`` is how long the model stays loaded after this use, if it is not one that always
        stays. Raises NotFoundError (404), OverloadError (503), LoadError (500).
        """
        entry = await self.entry(name)
        exchange: Exchange = http.scope.setdefault(KEY, Exchange())
        if entry in exchange.held and entry.served is not None:
            return entry.served, name or entry.names[0]
        alive = Alive(self.keep_alive, exchange.alive)
        served = await self.host.acquire(entry, _gone(http), alive)
        exchange.held[entry] = partial(self.host.release, entry, keep)
        return served, name or served.names[0]

    @contextmanager
    def hold(self, served: Served) -> Generator[None]:
        """Keeps an acquired model for work that outlasts its exchange."""
        entry = next((each for each in self.host.entries if each.served is served), None)
        if entry is None:  # not of this host: nobody unloads it
            yield
            return
        self.host.hold(entry)
        try:
            yield
        finally:
            self.host.release(entry)

    async def in_worker(self, work: Callable[[P], T], argument: P) -> T:
        """Runs slow text work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, work, argument)


def _gone(http: Request) -> Callable[[], Awaitable[None]]:
    """Ends, with ``ClientDisconnect``, when the client has left."""

    async def watch() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    return watch
