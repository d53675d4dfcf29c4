"""A small OpenAI endpoint with known delays, in this process.

The first token comes ``first`` seconds after the request, every next one ``each`` seconds
later, by the clock: a late one does not make the rest late. An event with the role alone comes
at once, as from real servers: it must not count as the first token.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TEMPLATE_TOKENS, TOKENS_A_WORD = 7, 2


@dataclass
class Fake:
    """What it does, and what it was asked."""

    first: float = 0.1
    each: float = 0.02
    says: str = "w{i} "
    counts: bool = True
    """Whether it tells its token counts when asked for them."""
    pair: bool = False
    """Two tokens in one event."""
    gathers: bool = False
    """All tokens in one piece, at the time of the last."""
    fails: int = 0
    """Every so many-th request is answered 500; 0 never."""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    running: int = 0
    most_running: int = 0
    url: str = ""

    def prompts(self) -> list[str]:
        """Of all requests, in the order of their coming."""
        return [
            body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
            for body in self.bodies
        ]

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake-1"}, {"id": "fake-2"}]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        if self.fails and len(self.bodies) % self.fails == 0:
            error = {"message": "out of flour", "code": 500}
            return JSONResponse({"error": error}, status_code=500)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        started = time.perf_counter()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            chat = "messages" in body
            count = body["max_tokens"] if body.get("ignore_eos") else min(3, body["max_tokens"])
            if chat:
                yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            yield b": keep-alive\n\n"
            held = b""
            for i in range(0, count, 2 if self.pair else 1):
                due = started + self.first + i * self.each
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                text = self.says.format(i=i)
                choice = {"delta": {"content": text}} if chat else {"text": text}
                held += _event({"choices": [choice]})
                if not self.gathers:
                    yield held
                    held = b""
            if held:
                yield held
            if self.counts and body.get("stream_options", {}).get("include_usage"):
                words = len((body["messages"][-1]["content"] if chat else body["prompt"]).split())
                usage = {
                    "prompt_tokens": TEMPLATE_TOKENS + TOKENS_A_WORD * words,
                    "completion_tokens": count,
                }
                yield _event({"choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
        finally:
            self.running -= 1


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


@contextmanager
def serving(fake: Fake) -> Generator[Fake]:
    """Serve it on a free port of this machine; ``fake.url`` is where."""
    routes = [
        Route("/v1/models", fake.models),
        Route("/v1/chat/completions", fake.complete, methods=["POST"]),
        Route("/v1/completions", fake.complete, methods=["POST"]),
    ]
    # With the protocol named asyncio sends at once; without, small events would wait for each
    # other (Nagle's algorithm) and the delays would not be those that were asked for.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
