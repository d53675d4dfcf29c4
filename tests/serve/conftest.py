"""A real server on a free port, around the fake engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from gristmill.errors import RequestError
from gristmill.options import Options
from gristmill.serve.app import create_app
from gristmill.serve.bridge import Bridge
from gristmill.serve.protocol import ChatInput, Prompt, Served
from gristmill.serve.server import Server, bind
from gristmill.serve.state import State
from tests.serve.fake_engine import CONTEXT, FakeEngine, FakeTokenizer


class FakeThink:
    """Text up to ``</think>`` is reasoning. Holds back what may be the start of the mark."""

    MARK = "</THINK>"

    def __init__(self) -> None:
        self.held = ""
        self.thinking = True

    def push(self, text: str) -> tuple[str, str]:
        if not self.thinking:
            return "", text
        self.held += text
        if self.MARK in self.held:
            reasoning, content = self.held.split(self.MARK, 1)
            self.thinking, self.held = False, ""
            return reasoning, content
        keep = next(
            (n for n in range(len(self.MARK), 0, -1) if self.held.endswith(self.MARK[:n])), 0
        )
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out, ""

    def flush(self) -> tuple[str, str]:
        held, self.held = self.held, ""
        return (held, "") if self.thinking else ("", held)


def fake_chat(chat: ChatInput) -> Prompt:
    """Only the last message's text is the prompt, so that the fake engine says it again."""
    last = chat.messages[-1]
    if not isinstance(last, dict) or not isinstance(last.get("content"), str):
        raise RequestError("messages[0]: 'content' must be a string.", "messages")
    if last.get("role") == "forbidden":
        raise RequestError("Conversation roles must alternate.", "messages")
    ids = FakeTokenizer().encode(last["content"], add_special=True, parse_special=False)
    thinks = bool(chat.variables.get("enable_thinking")) and chat.split_reasoning
    return Prompt(tuple(ids), FakeThink if thinks else None)


@dataclass
class Running:
    """A server and how to reach it."""

    url: str
    port: int
    state: State
    server: Server
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    loaded: object = None
    served: object = None

    def call(self, work: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(work)

    def client(self, **more) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **more)


def launch(engine: FakeEngine, options: Options, load: bool = True) -> Running:
    listener = bind(options.host, options.port)
    port = listener.getsockname()[1]
    started = threading.Event()
    box: dict[str, object] = {}

    def run() -> None:
        async def main() -> None:
            state = State(options, Bridge(asyncio.get_running_loop()))
            server = Server(create_app(state), state)
            box.update(state=state, server=server, loop=asyncio.get_running_loop())
            if load:
                attach(state, engine)
            started.set()
            await server.serve([listener])

        asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    return Running(
        f"http://127.0.0.1:{port}",
        port,
        box["state"],
        box["server"],
        engine,
        box["loop"],
        thread,
    )


def attach(state: State, engine: FakeEngine) -> None:
    attach_served(
        state,
        Served(("fake", "alias"), engine, FakeTokenizer(), fake_chat, CONTEXT, 1_700_000_000),
    )


def attach_served(state: State, served: Served) -> None:
    """The model is loaded."""
    state.metrics.attach(served)
    state.served = served


def stop(running: Running) -> None:
    """Ends a server and its engine."""
    if isinstance(running.engine, FakeEngine):
        running.engine.hold.set()
    if running.thread.is_alive():
        running.call(running.server.stop)
        running.thread.join(15)
    running.engine.close()
    assert not running.thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers and stops them after the test."""
    running: list[Running] = []

    def start(engine: FakeEngine | None = None, load: bool = True, **options) -> Running:
        made = launch(engine or FakeEngine(), Options(port=0, **options), load)
        running.append(made)
        return made

    yield start
    for each in running:
        stop(each)
