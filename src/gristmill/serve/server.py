"""uvicorn, run from here: asleep when idle, draining when told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from gristmill.errors import OverloadError, ResourceError
from gristmill.serve.state import State

log = logging.getLogger("gristmill.serve")

LINGER = 5
"""Seconds that finished answers may take to be read by their clients at the end."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything slow is begun.

    Raises: ResourceError naming the port and the way to another.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ResourceError(
            f"The host '{host}' is not an address of this machine: {error}."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ResourceError(
            f"Port {port} on {host} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for any free one."
        ) from None
    listener.setblocking(False)
    return listener


class Server(uvicorn.Server):
    """Sleeps until ``stop`` is called: no ticking. Signals are the command line's business."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
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
                h11_max_incomplete_event_size=64 * 1024,
            )
        )
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
