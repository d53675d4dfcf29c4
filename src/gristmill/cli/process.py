"""The serving process: loader thread, event loop, signals, and how it all ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gristmill.cli import ready
from gristmill.cli.asked_http import keys
from gristmill.errors import EngineError, GristmillError, OverloadError, UsageError
from gristmill.options import Options
from gristmill.serve import log, tls
from gristmill.serve.host import Model
from gristmill.serve.listen import Listener, listen

if TYPE_CHECKING:
    from gristmill.serve.server import Server
    from gristmill.serve.state import State

logger = logging.getLogger("gristmill.process")

LAST_WORDS = 3.0
"""Seconds after a failure until the process ends, whatever still hangs."""


def run(options: Options, backend: str, debug: bool) -> None:
    """Serves until told to stop, then ends the process with status 0.

    Raises GristmillError for a start in vain.
    """
    log.set_up(options)
    _bind_to(options.cpus)
    certificate = None if options.tls is None else tls.context(options.tls)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)  # until the event loop listens to them
    listener = listen(options)
    _AT_EXIT.append(listener.remove)
    ready.warn_if_open(options)
    try:
        asyncio.run(Process(options, backend, listener, debug, certificate).main())
    except BaseException:
        _tidy()
        raise
    _tidy()
    # Everything is closed. Taking the interpreter apart object by object would only take time.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


_AT_EXIT: list[Callable[[], None]] = []
"""What must be done before the process ends, in whatever way short of being killed."""


def _tidy() -> None:
    while _AT_EXIT:
        _AT_EXIT.pop()()


def _end_now(status: int) -> NoReturn:
    _tidy()
    os._exit(status)


def _bind_to(cpus: tuple[int, ...]) -> None:
    """Runs this process, and every thread it will make, on these CPUs alone."""
    if not cpus:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("--cpu-mask and --cpu-range need Linux.")
    missing = set(cpus) - os.sched_getaffinity(0)
    if missing:
        raise UsageError(
            f"CPU {min(missing)} cannot be used: this process may run on "
            f"{','.join(map(str, sorted(os.sched_getaffinity(0))))}."
        )
    for task in os.listdir("/proc/self/task"):  # numpy's may be there already
        os.sched_setaffinity(int(task), cpus)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Told to stop before anything is served. A loading thread may be in the middle of native
    work: the interpreter must not be taken apart around it."""
    _end_now(128 + number)


@dataclass
class Process:
    """One ``gristmill serve``. Everything but ``_load`` happens on the event loop."""

    options: Options
    backend: str
    listener: Listener
    debug: bool
    certificate: ssl.SSLContext | None = None
    error: BaseException | None = None
    """What ended the process, if it did not end as it should."""
    running: bool = False
    """Whether it has begun to serve."""
    started: float = field(default_factory=time.monotonic)
    _stopping: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def main(self) -> None:
        """Loads and serves, until told to stop. Raises what went wrong."""
        # Both sides of the start take their imports' time at once.
        if self.options.model:
            threading.Thread(target=self._load, name="gristmill-loader", daemon=True).start()
        from gristmill.cli.library import StoreLibrary
        from gristmill.serve.app import create_app
        from gristmill.serve.bridge import Bridge
        from gristmill.serve.server import Server
        from gristmill.serve.state import State

        self.loop = asyncio.get_running_loop()
        self.state: State = State(self.options, Bridge(self.loop), host=self.host)
        self.state.library = StoreLibrary()
        self.server: Server = Server(create_app(self.state), self.state, self.certificate)
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, self._told_to_stop, number)
        if self.options.api_key_file or self.certificate:
            # Otherwise it means what it always meant: the terminal has gone.
            self.loop.add_signal_handler(signal.SIGHUP, self._read_again)
        self._opened.set()
        if not self.options.model:
            self._announce(ready.store_block(self.options, self.host, self._address()))
        await self.server.serve([self.listener.socket])
        self._end()

    def __post_init__(self) -> None:
        from gristmill.cli.hosting import ModelOpener, host_of

        self._opened = threading.Event()
        self.opener = ModelOpener(self.options, self.backend, self._failed)
        self.host = host_of(self.options, self.opener)

    # ------------------------------------------------------------ the start

    def _load(self) -> None:
        """On the loader thread: from the model's name to a running engine."""
        try:
            model = Model(self.options.model, self.options.served_names)
            opened, loaded = self.opener.open(model, self.opener.budget, self._progress)
        except BaseException as error:
            self._opened.wait()
            self.loop.call_soon_threadsafe(self._cannot_start, error)
            return
        self._opened.wait()

        def there() -> None:
            self.host.put(self.host.entries[0], opened)
            seconds = time.monotonic() - self.started
            text = ready.block(
                self.options, loaded, opened.served, self._address(), seconds, self.host
            )
            self._announce(text)

        self.loop.call_soon_threadsafe(there)

    def _address(self) -> Any:
        return self.listener.socket.getsockname()

    def _announce(self, text: str) -> None:
        """The server has begun to serve."""
        self.running = True
        if not self._stopping:
            click.echo(text)
            sys.stdout.flush()

    def _progress(self, stage: str, done: int, total: int) -> None:
        if self._opened.is_set():
            from gristmill.serve.state import Progress

            self.state.progress = Progress(stage, done, total)

    def _cannot_start(self, error: BaseException) -> None:
        self.error = error
        self.state.failure = str(error)
        self.server.stop()

    def _read_again(self) -> None:
        """SIGHUP: keys and certificate are read again, each kept as it is if that fails."""
        options = self.options
        if options.api_key_file is not None:
            try:
                good = keys(options.api_keys_given, Path(options.api_key_file))
                self.state.keys.replace(good)
                logger.warning("read again: %d API keys are good now", len(good))
            except GristmillError as error:
                logger.error("the API keys stay as they were: %s", error)
        if options.tls is not None and self.certificate is not None:
            try:
                tls.load(self.certificate, options.tls)
                logger.warning("read again: the certificate is that of %s", options.tls.certificate)
            except GristmillError as error:
                logger.error("the certificate stays as it was: %s", error)

    # -------------------------------------------------------------- the end

    def _failed(self, error: EngineError) -> None:
        """The engine cannot go on. Called on its thread, or on the watchdog's."""
        threading.Thread(target=self._last_resort, args=(error,), daemon=True).start()
        self._opened.wait()
        self.loop.call_soon_threadsafe(self._tell_of_failure, error)

    def _tell_of_failure(self, error: EngineError) -> None:
        self.error = error
        self.state.failure = str(error)
        self.state.bridge.tell_all(error)
        self._later(self._stop_soon())

    async def _stop_soon(self) -> None:
        await self.state.bridge.idle(1.0)
        self.server.stop()

    def _last_resort(self, error: EngineError) -> None:
        time.sleep(LAST_WORDS)
        _exit_with(error, self.debug)

    def _told_to_stop(self, number: int) -> None:
        """SIGINT or SIGTERM: the first drains, a second ends at once."""
        if self._stopping or not self.running:
            _end_now(128 + number)
        self._stopping = True
        running = len(self.state.bridge.tickets)
        if running:
            what = "answer is" if running == 1 else "answers are"
            click.echo(
                f"\ngristmill: stopping; {running} {what} still running (up to "
                f"{self.options.shutdown_timeout:g} s, Ctrl-C again to stop now)",
                err=True,
            )
        self.host.stop(OverloadError("The server is shutting down.", 5))
        self._later(self.server.drain())

    def _later(self, work: object) -> None:
        task: asyncio.Task[None] = self.loop.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        error = self.error
        if isinstance(error, EngineError):
            # Its threads may hang: nothing is waited for.
            _exit_with(error, self.debug)
        if error is not None:
            if isinstance(error, GristmillError) or self.debug:
                raise error
            raise GristmillError(
                f"An unexpected error: {type(error).__name__}: {error} "
                "(--debug shows where; please report it)."
            ) from error
        self.host.close()
        self.state.workers.shutdown(wait=False, cancel_futures=True)


def _exit_with(error: GristmillError, debug: bool) -> None:
    """Ends the process with the cause as the last line of stderr."""
    if debug:
        traceback.print_exception(error)
    sys.stdout.flush()
    print(f"gristmill: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    _end_now(error.exit_code)
