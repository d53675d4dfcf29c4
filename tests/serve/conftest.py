"""A real server on a free port, around the fake engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gristmill.errors import RequestError
from gristmill.options import Options
from gristmill.serve.app import create_app
from gristmill.serve.bridge import Bridge
from gristmill.serve.protocol import ChatInput, Prompt, Served
from gristmill.serve.server import Server, bind
from gristmill.serve.state import State
from gristmill.types import Piece
from tests.serve.blocks import Model
from tests.serve.fake_engine import CONTEXT, FakeEngine, FakeTokenizer


class FakeThink:
    """Text up to ``</think>`` is reasoning. Holds back what may be the start of the mark."""

    MARK = "</THINK>"

    def __init__(self) -> None:
        self.held = ""
        self.thinking = True

    def push(self, text: str) -> Piece:
        if not self.thinking:
            return Piece(content=text)
        self.held += text
        if self.MARK in self.held:
            reasoning, content = self.held.split(self.MARK, 1)
            self.thinking, self.held = False, ""
            return Piece(reasoning, content)
        keep = next(
            (n for n in range(len(self.MARK), 0, -1) if self.held.endswith(self.MARK[:n])), 0
        )
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return Piece(out)

    def flush(self) -> Piece:
        held, self.held = self.held, ""
        return Piece(held) if self.thinking else Piece(content=held)


def fake_chat(chat: ChatInput) -> Prompt:
    """Only the last message's text is the prompt, so that the fake engine says it again."""
    last = chat.messages[-1]
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        raise RequestError("messages[0]: 'content' must be a string.", "messages")
    if last.get("role") == "forbidden":
        raise RequestError("Conversation roles must alternate.", "messages")
    ids = FakeTokenizer().encode(last["content"], add_special=True, parse_special=False)
    thinks = bool(chat.variables.get("enable_thinking")) and chat.split_reasoning is not False
    return Prompt(tuple(ids), FakeThink if thinks else None)


@dataclass
class Harness:
    """A server and how to reach it."""

    url: str
    port: int
    state: State
    server: Server
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    def call(self, work: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(work)

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **more)

    def stop(self) -> None:
        """Ends the server."""
        if self.thread.is_alive():
            self.call(self.server.stop)
            self.thread.join(15)
        assert not self.thread.is_alive()


@dataclass
class Running(Harness):
    """With a fake engine behind it."""

    engine: FakeEngine


Start = Callable[..., Running]
"""``serve(engine, load, **options)``."""


def launch(engine: FakeEngine, options: Options, load: bool = True) -> Running:
    """A server around ``engine``; without ``load`` it goes on loading."""
    served = fake_served(engine) if load else None
    return Running(**vars(start_server(options, served)), engine=engine)


def start_server(options: Options, served: Served | None) -> Harness:
    """A server on a thread of its own."""
    listener = bind(options.host, options.port)
    port = listener.getsockname()[1]
    started: Future[tuple[State, Server, asyncio.AbstractEventLoop]] = Future()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        state = State(options, Bridge(loop))
        server = Server(create_app(state), state)
        if served is not None:
            attach(state, served)
        started.set_result((state, server, loop))
        await server.serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    state, server, loop = started.result(10)
    return Harness(f"http://127.0.0.1:{port}", port, state, server, loop, thread)


def fake_served(engine: FakeEngine) -> Served:
    """The fake model."""
    return Served(("fake", "alias"), engine, FakeTokenizer(), fake_chat, CONTEXT, 1_700_000_000)


def attach(state: State, served: Served) -> None:
    """The model is loaded."""
    state.metrics.attach(served)
    state.served = served


def stop(running: Running) -> None:
    """Ends a server and its engine."""
    running.engine.hold.set()
    running.stop()
    running.engine.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers and stops them after the test."""
    running: list[Running] = []

    def start(engine: FakeEngine | None = None, load: bool = True, **options: Any) -> Running:
        made = launch(engine or FakeEngine(), Options(port=0, **options), load)
        running.append(made)
        return made

    yield start
    for each in running:
        stop(each)


@pytest.fixture
def model() -> Iterator[Callable[..., tuple[Model, Harness]]]:
    """Starts servers of models that say what a test wants, and stops them after it."""
    running: list[tuple[Model, Harness]] = []

    def start(*says: str, ends: bool = True, **options: Any) -> tuple[Model, Harness]:
        made = Model(*says, ends=ends)
        harness = start_server(Options(port=0, **options), made.served)
        running.append((made, harness))
        return made, harness

    yield start
    for made, harness in running:
        made.engine.hold.set()
        harness.stop()
        made.engine.close()
