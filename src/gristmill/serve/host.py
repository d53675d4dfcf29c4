"""Several models in one server: which are loaded, who uses them, which must make room.

A model is loaded when somebody asks for it, one at a time, in the order they were asked for. If
the budget has no room for it, the idle model that was used longest ago is unloaded first; if all
are busy, one is let finish and nobody new is let in to it until the waiting model had its turn.
The model named first on the command line is pinned: it stays.

Everything here happens on the event loop; only opening and closing a model do not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from gristmill.errors import GristmillError, NotFoundError, OverloadError, ResourceError
from gristmill.serve.entry import (
    LATEST,
    Alive,
    Entry,
    Gone,
    Keep,
    LoadError,
    Model,
    Opened,
    Opener,
    Progress,
    Report,
    Stage,
    spellings,
)
from gristmill.serve.protocol import Served

__all__ = [
    "LATEST",
    "Alive",
    "Entry",
    "Gone",
    "Host",
    "Keep",
    "LoadError",
    "Model",
    "Opened",
    "Opener",
    "Progress",
    "Report",
    "Stage",
    "aside",
    "spellings",
]

log = logging.getLogger("gristmill.host")

T = TypeVar("T")


class Host:
    """All models of a server.

    ``budget`` bounds what the loaded ones may hold together, in bytes (None: it is not bounded
    here). ``store`` lists the models in the model store, if they can be asked for; it is called
    on a thread.
    """

    def __init__(
        self,
        opener: Opener | None = None,
        *,
        budget: int | None = None,
        keep: float | None = 300.0,
        load_timeout: float = 300.0,
        store: Callable[[], list[Model]] | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        self.budget = budget
        self.keep = keep
        self.load_timeout = load_timeout
        self.on_loaded: Callable[[Served], None] = _ignore
        self.on_unloading: Callable[[Served], None] = _ignore
        self._opener = opener
        self._store = store
        self._line: deque[Entry] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = False
        self._over: GristmillError | None = None
        self._changed: asyncio.Event | None = None

    # ------------------------------------------------------------ the models

    @property
    def first(self) -> Entry | None:
        """The model meant when a request names none: the first pinned one, or the only one."""
        for entry in self.entries:
            if entry.pinned:
                return entry
        return self.entries[0] if len(self.entries) == 1 else None

    def add(self, model: Model, *, pinned: bool = False) -> Entry:
        """One more model. A name that another has already stays that one's."""
        taken = {name for entry in self.entries for name in entry.names}
        names = tuple(name for name in model.names if name not in taken) or (model.reference,)
        entry = Entry(model, names, pinned, keep=self.keep)
        self.entries.append(entry)
        return entry

    def put(self, entry: Entry, opened: Opened) -> None:
        """A model that was loaded elsewhere: the first one, at the start."""
        self._there(entry, opened)
        self._tell()

    def find(self, name: str) -> Entry | None:
        """The model called ``name``, also as Ollama's clients write it (``:latest``)."""
        for wanted in spellings(name):
            for entry in self.entries:
                if wanted in entry.names:
                    return entry
        return None

    async def look_up(self, name: str) -> Entry:
        """The same, after a look into the store. Raises NotFoundError (404)."""
        entry = self.find(name)
        if entry is None and self._store is not None:
            await self.refresh()
            entry = self.find(name)
        if entry is None:
            raise self.unknown(name)
        return entry

    def unknown(self, name: str) -> NotFoundError:
        """The error for a name that no model has."""
        known = ", ".join(f"'{each}'" for entry in self.entries for each in entry.names)
        return NotFoundError(
            f"The model '{name[:200]}' is not served here; served: {known or 'none yet'}.", "model"
        )

    async def refresh(self) -> None:
        """Takes in what has come into the store, and forgets what has gone."""
        if self._store is None:
            return
        stored = await aside(self._store)
        there = {model.path for model in stored}
        self.entries = [
            entry
            for entry in self.entries
            if not entry.model.stored or entry.model.path in there or entry.stage != "unloaded"
        ]
        have = {entry.model.path for entry in self.entries}
        for model in stored:
            if model.path not in have:
                self.add(model)

    # ------------------------------------------------------------ using them

    async def acquire(
        self, entry: Entry, gone: Gone | None = None, alive: Alive | None = None
    ) -> Served:
        """Waits until ``entry`` is loaded and keeps it so until ``release``.

        ``alive`` is awaited now and then in the meantime.

        What ``gone`` awaits, if it ends first, ends the waiting with its exception. Raises
        LoadError, OverloadError after ``load_timeout`` seconds or when the server is closing.
        """
        if not entry.free:
            entry.waiting += 1
            try:
                await self._wait(entry, gone, alive or Alive())
            finally:
                entry.waiting -= 1
        return self.hold(entry)

    def hold(self, entry: Entry) -> Served:
        """One more lease of a loaded model; ``release`` ends it."""
        assert entry.opened is not None
        entry.leases += 1
        entry.used = time.monotonic()
        entry.expires = None
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        return entry.opened.served

    def release(self, entry: Entry, keep: Keep = "default") -> None:
        """One exchange less. ``keep``: seconds the model stays after this, None for ever."""
        entry.leases -= 1
        entry.used = time.monotonic()
        entry.keep = self.keep if keep == "default" else keep
        if entry.parting:
            entry.keep = 0.0
        self._rest(entry)
        self._tell()

    async def _wait(self, entry: Entry, gone: Gone | None, alive: Alive) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.load_timeout
        watcher = None if gone is None else asyncio.ensure_future(gone())
        try:
            while not entry.free:
                attempt = self._want(entry)
                waits = {attempt} if watcher is None else {attempt, watcher}
                patience = min(alive.every, end - loop.time())
                done, _ = await asyncio.wait(
                    waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and loop.time() < end:
                    await alive.tell()
                if watcher is not None and watcher.done():
                    watcher.result()
                    watcher = None
                if attempt.done():
                    attempt.result()
                elif loop.time() >= end:
                    raise OverloadError(self._still(entry), retry_after=5)
        finally:
            if watcher is not None:
                watcher.cancel()

    def _still(self, entry: Entry) -> str:
        progress = entry.progress
        at = f" ({progress.stage}, {progress.fraction:.0%})" if progress.total else ""
        what = "is still being loaded" if entry.stage == "loading" else "waits to be loaded"
        return f"The model '{entry.names[0]}' {what}{at}; try again later."

    def _want(self, entry: Entry) -> asyncio.Future[None]:
        """Puts a load of ``entry`` into the line, unless it is there already."""
        if self._over is not None:
            raise self._over
        if entry.attempt is None:
            entry.attempt = asyncio.get_running_loop().create_future()
            entry.attempt.add_done_callback(_seen)
            self._line.append(entry)
            if not self._working:
                self._working = True
                self._spawn(self._work())
        return entry.attempt

    # -------------------------------------------------------------- the line

    async def _work(self) -> None:
        """Loads what stands in line, one after another."""
        try:
            while self._line:
                entry = self._line.popleft()
                attempt = entry.attempt
                assert attempt is not None
                try:
                    if entry.waiting and not entry.free:
                        await self._load(entry)
                    error = None
                except Exception as raised:
                    error = _told(entry, raised)
                entry.attempt = None
                if not attempt.done():
                    if error is None:
                        attempt.set_result(None)
                    else:
                        attempt.set_exception(error)
                self._rest(entry)
                self._tell()
        finally:
            self._working = False

    async def _load(self, entry: Entry) -> None:
        while entry.stage == "unloading":
            await self._change()
        opener = self._opener
        if opener is None:
            raise ResourceError("This server cannot load models.")
        if entry.stage == "loaded":  # it was to leave, and need not any more
            return
        entry.stage, entry.progress = "loading", Progress()

        def report(stage: str, done: int, total: int) -> None:
            entry.progress = Progress(stage, done, total)

        try:
            model = replace(entry.model, names=entry.names)
            need = await aside(lambda: opener.need(model, report))
            room = await self._make_room(need)
            began = time.monotonic()
            self._there(entry, await aside(lambda: opener.load(model, room, report)))
            log.info("loaded %s in %.1f s", entry.names[0], time.monotonic() - began)
        except BaseException:
            entry.stage = "unloaded"
            raise

    def _there(self, entry: Entry, opened: Opened) -> None:
        entry.opened, entry.held, entry.stage = opened, opened.held, "loaded"
        entry.names = opened.served.names
        entry.model = replace(entry.model, path=opened.path or entry.model.path)
        entry.keep, entry.used = self.keep, time.monotonic()
        self.on_loaded(opened.served)

    async def _make_room(self, need: int) -> int | None:
        """Unloads others until ``need`` bytes are free; the bytes that are. Raises ResourceError
        when they never can be."""
        if self.budget is None:
            return None
        staying = sum(each.held for each in self.entries if each.pinned)
        if need + staying > self.budget:
            with_pinned = f", of which {_mb(staying)} are taken for good" if staying else ""
            raise ResourceError(
                f"It needs {_mb(need)} of memory; all models together may take "
                f"{_mb(self.budget)}{with_pinned} (--model-memory)."
            )
        try:
            while True:
                held = sum(each.held for each in self.entries)
                if held + need <= self.budget:
                    return self.budget - held
                victim = self._victim()
                if victim is not None and victim.idle:
                    await self._unload(victim)
                    continue
                if victim is not None:
                    victim.leaving = True
                await self._change()
                if self._over is not None:
                    raise self._over
        finally:
            for each in self.entries:
                each.leaving = False

    def _victim(self) -> Entry | None:
        """Who goes next: of the idle ones the one used longest ago, else of the busy ones."""
        if any(each.stage == "unloading" for each in self.entries):
            return None  # its memory is about to be free
        loaded = [each for each in self.entries if each.stage == "loaded" and not each.pinned]
        return min(loaded, key=lambda each: (not each.idle, each.used), default=None)

    # --------------------------------------------------------------- the end

    def _rest(self, entry: Entry) -> None:
        """Nobody uses the model any more: how long does it stay?"""
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = entry.expires = None
        if entry.stage != "loaded" or entry.pinned or entry.leases or entry.waiting:
            return
        if entry.keep is None:
            return
        entry.expires = time.time() + entry.keep
        entry.timer = asyncio.get_running_loop().call_later(entry.keep, self._expire, entry)

    def _expire(self, entry: Entry) -> None:
        entry.timer = None
        if entry.idle and self._over is None:
            self._spawn(self._unload(entry))

    async def unload(self, entry: Entry) -> bool:
        """Unloads it if nobody uses it; whether it is unloaded now."""
        await self._unload(entry)
        return entry.stage == "unloaded"

    async def let_go(self, entry: Entry) -> None:
        """Unloads it now, or as soon as those who use it are done. Pinned ones stay."""
        if not await self.unload(entry):
            entry.parting = True

    async def _unload(self, entry: Entry) -> None:
        if not entry.idle or entry.opened is None:  # somebody came since it was decided
            return
        if entry.timer is not None:
            entry.timer.cancel()
        entry.stage, entry.timer, entry.expires = "unloading", None, None
        entry.parting = False
        self.on_unloading(entry.opened.served)
        close = entry.opened.close
        entry.opened = None  # before: what is still held on to is not freed
        try:
            await aside(close)
        finally:
            entry.held, entry.stage = 0, "unloaded"
            log.info("unloaded %s", entry.names[0])
            self._tell()

    def forget(self, entry: Entry) -> None:
        """The model is no more (its files are deleted)."""
        self.entries = [each for each in self.entries if each is not entry]

    def stop(self, error: GristmillError) -> None:
        """No more loads: those who wait for one are told ``error``."""
        self._over = error
        for entry in self.entries:
            if entry.attempt is not None and not entry.attempt.done():
                entry.attempt.set_exception(error)
        self._tell()

    def close(self) -> None:
        """Closes every loaded model, at the end of the process."""
        for entry in self.entries:
            if entry.opened is not None:
                entry.opened.close()
                entry.opened, entry.stage = None, "unloaded"

    # ------------------------------------------------------------ small things

    def _tell(self) -> None:
        """Something has changed: whoever waits for that looks again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[assignment]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def aside(work: Callable[[], T]) -> T:
    """Runs slow work on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop has closed: the process is ending
            return

    threading.Thread(target=run, name="gristmill-host", daemon=True).start()
    return await done


def _told(entry: Entry, error: Exception) -> GristmillError:
    """The error that a load ended with, as those who waited for it are told."""
    if isinstance(error, OverloadError):
        return error
    what = str(error) if isinstance(error, GristmillError) else type(error).__name__
    made = LoadError(f"The model '{entry.names[0]}' could not be loaded: {what}")
    made.__cause__ = error
    return made


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _seen(attempt: asyncio.Future[None]) -> None:
    """A failure that nobody waited for is nobody's."""
    if not attempt.cancelled():
        attempt.exception()


def _ignore(_served: Served) -> None:
    return
