"""Many clients of all dialects for some minutes: nothing may break, leak or grow.

    PYTHONPATH=src python benchmarks/soak.py MODEL.gguf [--clients 64] [--minutes 10]
        [--json FILE] [--fixed] [-- --kv-cache-memory-bytes 400MB …]

Starts a server and asks it as OpenAI's, Anthropic's, Ollama's and llama-server's clients do,
streamed and whole, with tools, JSON schemas and several answers; some clients leave in the
middle, reset their connection, read slowly or not at all, some send what nobody should. It is a
fault when a status is 500 or not the one expected, when a stream is not what its dialect says
(soak_streams.py), when the greedy answer to one prompt changes, when the server logs an error,
when a block of the cache is still held once nothing runs, or when files, threads or memory have
grown at the end. Ends with status 1 if there was a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx
import soak_streams as streams
from soak_streams import Check, Fault, need

HELLO = [{"role": "user", "content": "Name three animals."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["left", "right"]}},
            "required": ["where"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"type": "string", "maxLength": 12}, "legs": {"type": "integer"}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
HUGE: tuple[dict[str, Any], ...] = (
    {"n": 10**9},
    {"max_tokens": 10**30},
    {"logit_bias": {str(i): 1 for i in range(20_000)}},
    {"stop": [str(i) for i in range(5_000)]},
    {"temperature": 1e308},
    {"messages": [{"role": "user", "content": "a b " * 200_000}], "prompt": "a b " * 200_000},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"a" * i: {"type": "nothing"} for i in range(500)}}}}},
)  # fmt: skip
"""Fields of a size that nobody means."""
BUSY = (503, 504)
"""Statuses that a full or closing server may answer."""


@dataclass
class Ledger:
    """What was seen."""

    done: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)
    first: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(list))
    busy: int = 0
    texts: set[str] = field(default_factory=set[str])


@dataclass
class Client:
    """One client: its own random choices, a connection of its own now and then."""

    base: str
    model: str
    ledger: Ledger
    rng: random.Random
    http: httpx.AsyncClient
    longest: int = 40
    """How many times the longest prompt says its sentence."""

    def words(self) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return "".join(self.rng.choice(letters) for _ in range(8))

    def chat(self) -> list[dict[str, str]]:
        """A prompt that nobody has asked, of some tokens or some hundred."""
        times = self.rng.choice((0, 2, self.longest))
        text = f"{self.words()}: tell me something. " + "Word after word. " * times
        return [{"role": "user", "content": text}]

    async def post(self, path: str, body: Any) -> Any:
        """A whole answer: its JSON."""
        got = await self.http.post(self.base + path, json=body)
        if got.status_code in BUSY:
            self.ledger.busy += 1
            return None
        if got.status_code != 200:
            raise Fault(f"{path}: status {got.status_code}: {got.text[:200]}")
        return got.json()

    async def stream(self, name: str, path: str, body: Any, check: Check) -> list[str]:
        """A stream: all of its lines. Leaves in the middle one time in six, sleeps one in ten."""
        leave = self.rng.randint(1, 12) if self.rng.random() < 1 / 6 else 0
        sleep = self.rng.random() < 0.1
        began, lines = time.monotonic(), list[str]()
        async with self.http.stream("POST", self.base + path, json=body) as got:
            if got.status_code in BUSY:
                self.ledger.busy += 1
                return []
            if got.status_code != 200:
                raise Fault(f"{path}: status {got.status_code}: {(await got.aread())[:200]!r}")
            async for line in got.aiter_lines():
                if not lines:
                    self.ledger.first[name].append(time.monotonic() - began)
                if line and line[0] != ":":
                    lines.append(line)
                if leave and len(lines) >= leave:
                    self.ledger.done["left"] += 1
                    return []
                if sleep and len(lines) == 3:
                    await asyncio.sleep(self.rng.random() * 2)
        check(lines)
        return lines

    # --------------------------------------------------------- what is asked

    def size(self) -> int:
        return self.rng.choice((1, 8, 24, 60))

    async def openai(self) -> None:
        body: dict[str, Any] = {"messages": self.chat(), "max_tokens": self.size()}
        if self.rng.random() < 0.3:
            body |= {"n": 3, "logprobs": True, "top_logprobs": 2}
        if self.rng.random() < 0.5:
            await self.stream("openai chat", "/v1/chat/completions", body | {"stream": True},
                              streams.openai)  # fmt: skip
        else:
            await self.post("/v1/chat/completions", body)

    async def tools(self) -> None:
        body = {"messages": self.chat(), "tools": [TOOL], "tool_choice": "required",
                "max_tokens": 80, "parallel_tool_calls": False}  # fmt: skip
        got = await self.post("/v1/chat/completions", body)
        if got is None:
            return
        choice = got["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            (call,) = choice["message"]["tool_calls"]
            if json.loads(call["function"]["arguments"])["where"] not in ("left", "right"):
                raise Fault(f"tools: {call}")

    async def schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        body = {"messages": self.chat(), "response_format": form, "max_tokens": 80}
        got = await self.post("/v1/chat/completions", body)
        if got is not None and got["choices"][0]["finish_reason"] == "stop":
            found = json.loads(got["choices"][0]["message"]["content"])
            if set(found) != {"animal", "legs"}:
                raise Fault(f"schema: {found}")

    async def completions(self) -> None:
        body = {"prompt": [self.words(), "Once upon a time"], "max_tokens": self.size(),
                "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
        await self.stream("completions", "/v1/completions", body, streams.openai)

    async def responses(self) -> None:
        body = {"input": self.chat()[0]["content"], "max_output_tokens": self.size() + 16}
        if self.rng.random() < 0.5:
            await self.stream("responses", "/v1/responses", body | {"stream": True},
                              streams.responses)  # fmt: skip
        else:
            await self.post("/v1/responses", body)

    async def anthropic(self) -> None:
        body = {"model": self.model, "messages": self.chat(), "max_tokens": self.size()}
        if self.rng.random() < 0.5:
            await self.stream("anthropic", "/v1/messages", body | {"stream": True},
                              streams.anthropic)  # fmt: skip
        else:
            await self.post("/v1/messages", body)

    async def llama(self) -> None:
        body = {"prompt": self.words(), "n_predict": self.size(), "n_probs": 1}
        if self.rng.random() < 0.5:
            await self.stream("llama-server", "/completion", body | {"stream": True},
                              streams.llama)  # fmt: skip
        else:
            await self.post("/completion", body)

    async def ollama(self) -> None:
        options = {"num_predict": self.size()}
        chat = {"model": self.model, "messages": self.chat(), "options": options}
        generate = {"model": self.model, "prompt": self.words(), "options": options}
        path, body = self.rng.choice((("/api/chat", chat), ("/api/generate", generate)))
        if self.rng.random() < 0.5:
            await self.stream("ollama", path, body, streams.ollama)
        else:
            await self.post(path, body | {"stream": False})

    async def same(self) -> None:
        """The greedy answer to one prompt, in any company and any dialect."""
        # Ollama penalises repetition unless it is told not to.
        greedy = {"temperature": 0, "num_predict": 32, "repeat_penalty": 1.0}
        body = {"model": self.model, "messages": HELLO, "temperature": 0, "max_tokens": 32}
        dialect = self.rng.randrange(3)
        if dialect == 0:
            got = await self.post("/v1/chat/completions", body)
            text = got and got["choices"][0]["message"]["content"]
        elif dialect == 1:
            got = await self.post("/v1/messages", body)
            text = got and "".join(block["text"] for block in got["content"])
        else:
            asked = {"model": self.model, "messages": HELLO, "options": greedy, "stream": False}
            got = await self.post("/api/chat", asked)
            text = got and got["message"]["content"]
        if got is not None:
            self.ledger.texts.add(text)
            need(len(self.ledger.texts) == 1, "greedy answers differ", self.ledger.texts)

    async def nonsense(self) -> None:
        """What must be refused, with a status that says so."""
        good = {"messages": HELLO, "max_tokens": 4}
        path, content, expected = self.rng.choice((
            ("/v1/chat/completions", b"{", 400),
            ("/v1/chat/completions", b"", 400),
            ("/v1/chat/completions", b"[1]", 400),
            ("/v1/chat/completions", b'{"messages": 5}', 400),
            ("/v1/chat/completions", json.dumps(good | {"temperature": "hot"}).encode(), 400),
            ("/v1/chat/completions", json.dumps(good | {"max_tokens": -7}).encode(), 400),
            ("/v1/chat/completions", json.dumps(good | {"model": "none"}).encode(), 404),
            ("/v1/chat/completions", json.dumps(good | {"stop": ["x" * 9999]}).encode(), 400),
            ("/v1/chat/completions", b'{"a":' * 3000 + b"1" + b"}" * 3000, 400),
            ("/v1/messages", json.dumps({"model": self.model, "messages": HELLO}).encode(), 400),
            ("/api/chat", json.dumps({"model": "none", "messages": HELLO}).encode(), 404),
            ("/completion", b'{"prompt": {"a": 1}}', 400),
            ("/v1/nothing", b"{}", 404),
            *((f"/v1/{path}", json.dumps(good | {"prompt": "a"} | fields).encode(), 400)
              for path in ("chat/completions", "completions") for fields in HUGE),
        ))  # fmt: skip
        got = await self.http.post(self.base + path, content=content)
        if got.status_code != expected and got.status_code not in BUSY:
            raise Fault(
                f"{path} {content[:40]!r}…{content[-80:]!r}: status {got.status_code}, "
                f"not {expected}"
            )

    async def bad_http(self) -> None:
        """Bytes that are no HTTP: an answer of 400 to 505, or a closed connection."""
        host, port = self.base.removeprefix("http://").split(":")
        data = self.rng.choice((b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                                b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
                                b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a" * 70000))  # fmt: skip
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            await writer.drain()
            if b"Content-Length" not in data:
                await asyncio.wait_for(reader.read(1 << 16), 30)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def vanish(self) -> None:
        """Wants a whole answer and does not wait for it; or resets the connection of a stream."""
        host, port = self.base.removeprefix("http://").split(":")
        more = {"stream": self.rng.random() < 0.5, "n": self.rng.choice((1, 4))}
        asked = {"messages": self.chat(), "max_tokens": 200, "ignore_eos": True}
        body = json.dumps(asked | more)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
            writer.write(f"{head}\r\n\r\n{body}".encode())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(100), self.rng.random() * 3)
            if self.rng.random() < 0.5:  # closed so, a connection is reset
                own = writer.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            writer.close()

    async def two_at_once(self) -> None:
        """Two requests in one packet: two answers, in their order."""
        host, port = self.base.removeprefix("http://").split(":")
        body = json.dumps({"prompt": self.words(), "n_predict": 4})
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            first = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            second = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write((first + body + second).encode())
            data = await asyncio.wait_for(reader.read(), 200)
            statuses = [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]
            need(len(statuses) == 2 and statuses[1] == 200, "two at once", statuses)
            need(statuses[0] in (200, *BUSY), "two at once", statuses)
        finally:
            writer.close()

    async def run(self, until: float) -> None:
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.openai), (2, self.tools), (2, self.schema), (3, self.completions),
            (3, self.responses), (3, self.anthropic), (3, self.llama), (3, self.ollama),
            (2, self.same), (3, self.nonsense), (1, self.bad_http), (1, self.vanish),
            (1, self.two_at_once),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        while time.monotonic() < until:
            ((_, action),) = self.rng.choices(actions, weights)
            try:
                await action()
                self.ledger.done[action.__name__] += 1
            except (Fault, httpx.HTTPError, ValueError, KeyError, OSError) as error:
                self.ledger.faults.append(f"{action.__name__}: {type(error).__name__}: {error}")


# ------------------------------------------------------------------- the server


def state_of(pid: int) -> dict[str, float]:
    """Memory (MB, of the process alone), open files, threads."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return {
        "pss_mb": pss / 1024,
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def metrics(base: str) -> dict[str, float]:
    """The sum of each metric over its labels."""
    found: dict[str, float] = collections.defaultdict(float)
    for line in httpx.get(base + "/metrics").text.splitlines():
        if line and line[0] != "#":
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] += float(value)
    return found


def start(model: Path, flags: list[str], log: int) -> tuple[subprocess.Popen[str], str]:
    """A server, whose log goes to ``log``, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gristmill", "serve", str(model), "--port", str(port),
               "--log-level", "warning", *flags]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith("curl"):
            break
    return process, f"http://127.0.0.1:{port}"


async def crowd(
    base: str, clients: int, seconds: float, ledger: Ledger, seed: int, longest: int = 40
) -> None:
    """All clients until the time is over."""
    model = httpx.get(base + "/v1/models").json()["data"][0]["id"]
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300, limits=limits) as http:
        made = [
            Client(base, model, ledger, random.Random(seed * 1000 + i), http, longest)
            for i in range(clients)
        ]
        await asyncio.gather(*(client.run(until) for client in made))


HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
"""What must be nothing once nobody is answered. (Blocks that are kept for reuse do not count.)"""


async def settle(base: str) -> dict[str, float]:
    """The metrics once nothing runs any more."""
    for _ in range(60):
        found = metrics(base)
        if not any(found[name] for name in HELD):
            return found
        await asyncio.sleep(0.5)
    raise Fault(f"half a minute after the last client: { {name: found[name] for name in HELD} }")


def tail(seconds: list[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixed", action="store_true", help="bounded cache: memory may not grow")
    own, flags = sys.argv[1:], list[str]()
    if "--" in own:
        own, flags = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    with tempfile.TemporaryFile("w+") as log:
        process, base = start(given.model, flags, log.fileno())
        try:
            return soak(given, process, base, log)
        finally:
            process.kill()


def soak(given: argparse.Namespace, process: subprocess.Popen[str], base: str, log: TextIO) -> int:
    """Runs the crowd against a server; 1 if there was a fault."""
    ledger = Ledger()
    # A first part makes what is made once: caches, pools, connections. Then it may not grow.
    asyncio.run(crowd(base, given.clients, 60 * given.minutes / 3, ledger, 1))
    asyncio.run(settle(base))
    middle = state_of(process.pid)
    asyncio.run(crowd(base, given.clients, 60 * given.minutes * 2 / 3, ledger, 2))
    found = asyncio.run(settle(base))
    end = state_of(process.pid)
    if end["files"] > middle["files"] + 2 or end["threads"] > middle["threads"] + 2:
        ledger.faults.append(f"files or threads have grown: {middle} → {end}")
    if given.fixed and end["pss_mb"] > 1.1 * middle["pss_mb"] + 20:
        ledger.faults.append(f"memory has grown: {middle} → {end}")
    process.send_signal(signal.SIGTERM)
    if process.wait(60):
        ledger.faults.append(f"the server ended with status {process.returncode}")
    log.seek(0)
    said = log.read()
    if "ERROR" in said or "Traceback" in said:
        ledger.faults.append("the server's log: " + said[-2000:])
    times = {name: tail(seconds) for name, seconds in sorted(ledger.first.items())}
    for name, (median, p99) in times.items():
        print(f"first event  {name:14} p50 {median:6.2f} s   p99 {p99:6.2f} s")
    print("done:", dict(ledger.done), f"refused as busy: {ledger.busy}")
    print(f"tokens: {found['vllm:generation_tokens_total']:.0f}")
    print("after a third:", middle, "at the end:", end)
    print(f"{len(ledger.faults)} faults", *ledger.faults[:20], sep="\n  ")
    if given.json:
        report = {"done": ledger.done, "busy": ledger.busy, "first": times, "middle": middle,
                  "end": end, "faults": ledger.faults}  # fmt: skip
        given.json.write_text(json.dumps(report, indent=1))
    return 1 if ledger.faults else 0


if __name__ == "__main__":
    sys.exit(main())
