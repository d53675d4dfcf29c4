"""uvicorn, run from here: asleep when idle, draining when told to stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from gristmill.errors import OverloadError
from gristmill.serve.listen import bind
from gristmill.serve.state import State
from gristmill.serve.wire import Protocol

__all__ = ["Server", "bind"]

log = logging.getLogger("gristmill.serve")

LINGER = 5
"""Seconds that finished answers may take to be read by their clients at the end."""


class Server(uvicorn.Server):
    """Sleeps until ``stop`` is called: no ticking. Signals are the command line's business."""

    def __init__(self, app: ASGIApp, state: State, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=LINGER,
                # Limits what a request's head may take; bodies are bounded where they are read.
                h11_max_incomplete_event_size=state.options.max_head_bytes,
            )
        )
        self.config.load()
        self.config.ssl = tls
        vars(self.config)["max_headers"] = state.options.max_headers
        self._state = state
        self._stop = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves the process' signal handlers alone."""
        yield

    async def main_loop(self) -> None:
        """Sleeps until the end."""
        await self._stop.wait()

    def stop(self) -> None:
        """Ends ``serve`` (on the event loop)."""
        self.should_exit = True
        self._stop.set()

    async def drain(self) -> None:
        """Takes nothing new, lets what runs finish within the bound, tells the rest."""
        state = self._state
        state.draining = True
        bound = state.options.shutdown_timeout
        if not await state.bridge.idle(bound):
            log.warning("%d answers cut off after %g s", len(state.bridge.tickets), bound)
            state.bridge.tell_all(
                OverloadError("The server is shutting down; the answer was cut off.", 5)
            )
            await state.bridge.idle(2.0)
        self.stop()
