"""What HTTP costs: the tokens a second of a server's streams against the engine's alone.

    PYTHONPATH=src python benchmarks/overhead.py MODEL.gguf [--streams 8] [--tokens 128]
        [--rounds 7] [--plain]

Each round runs the same requests (greedy, of exact length, each with a beginning of its own)
first through the engine in this process, then as streams of `/v1/chat/completions` (or, with
`--plain`, as whole answers) through a server process, while the other one sleeps. The client
only counts bytes, so that it takes little from the cores it shares; processor time a token is
told for the server, its event loop alone (Linux) and the client apart: on a machine that others
use, those tell more than the tokens a second. Neither side guesses ahead, which would vary with
the texts, and prompts may slow answers as they like: over HTTP they come one by one. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Request, SamplingParams

PROMPT = "Request number {}: tell a long story about a mill by a river and the people in it."


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loop_seconds(pid: int) -> float:
    """Processor time of a server's event loop, which runs on its first thread."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Offline:
    """The engine in this process."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    def round(self, prompts: list[tuple[int, ...]], tokens: int) -> tuple[float, float]:
        """Seconds of all streams together, and processor seconds."""
        deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        began, used = time.perf_counter(), time.process_time()
        for i, prompt in enumerate(prompts):
            self.loaded.engine.submit(Request(f"{began}-{i}", prompt, params), deltas.put)
        left = len(prompts)
        while left:
            left -= deltas.get(timeout=600).finish is not None
        return time.perf_counter() - began, time.process_time() - used


class Served:
    """A server process, and a client that reads until every answer has ended."""

    def __init__(self, model: Path, stream: bool) -> None:
        self.port = free_port()
        self.stream = stream
        quiet = ["--disable-uvicorn-access-log", "--log-level", "warning", "--draft-max", "0",
                 "--max-slowdown", "1e6"]  # fmt: skip
        command = [sys.executable, "-m", "gristmill", "serve", str(model), "--port",
                   str(self.port), *quiet]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip().startswith("curl"):
                break

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        body = json.dumps({"messages": [{"role": "user", "content": text}]})
        answer = self._call("/tokenize", body)
        return tuple(json.loads(answer)["tokens"])

    def _call(self, path: str, body: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(self._request(path, body))
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).partition(b"\r\n\r\n")[2]

    def _request(self, path: str, body: str) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        return f"{head}{len(body)}\r\n\r\n{body}".encode()

    def round(self, texts: list[str], tokens: int) -> tuple[float, float, float, float]:
        """Seconds; processor seconds of the server; of its event loop; of the client."""
        selector = selectors.DefaultSelector()
        pid = self.process.pid
        began, served, loop = time.perf_counter(), cpu_seconds(pid), loop_seconds(pid)
        own = resource.getrusage(resource.RUSAGE_SELF)
        for text in texts:
            fields = {"messages": [{"role": "user", "content": text}], "stream": self.stream,
                      "temperature": 0, "max_tokens": tokens, "ignore_eos": True}  # fmt: skip
            connection = socket.create_connection(("127.0.0.1", self.port))
            connection.sendall(self._request("/v1/chat/completions", json.dumps(fields)))
            selector.register(connection, selectors.EVENT_READ)
        left = len(texts)
        while left:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if not connection.recv(1 << 16):
                    selector.unregister(connection)
                    connection.close()
                    left -= 1
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        client = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
        return took, cpu_seconds(pid) - served, loop_seconds(pid) - loop, client

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true", help="whole answers, not streams")
    given = parser.parse_args()
    served = Served(given.model, not given.plain)
    offline = Offline(
        load(open_model(given.model), Options(model=str(given.model), draft_tokens=0, slowdown=1e6))
    )
    alone: list[float] = []
    http: list[float] = []
    rows: list[tuple[float, ...]] = []
    count = given.streams * given.tokens
    for number in range(given.rounds + 1):
        texts = [PROMPT.format(f"{number}.{i}") for i in range(given.streams)]
        prompts = [served.prompt_ids(text) for text in texts]
        seconds, cpu = offline.round(prompts, given.tokens)
        took, *used = served.round(texts, given.tokens)
        if number:  # the first warms up
            alone.append(count / seconds)
            http.append(count / took)
            rows.append(tuple(each / count for each in (cpu, *used)))
    served.close()
    loss = statistics.median(1 - b / a for a, b in zip(alone, http, strict=True))
    cpu, server, loop, client = (
        1e6 * statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(f"engine alone  {statistics.median(alone):8.1f} tokens/s, {cpu:.0f} µs of cores a token")
    print(
        f"over HTTP     {statistics.median(http):8.1f} tokens/s, {server:.0f} µs of cores a token"
    )
    print(f"its event loop {loop:.0f} µs of a core a token")
    print(f"the client    {client:.0f} µs of cores a token")
    print(f"HTTP costs    {100 * loss:.1f} % (median of {given.rounds} rounds)")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
