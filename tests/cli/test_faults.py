"""The real process under load when it is told to stop or is killed, with clients of all dialects
and some that do not read. (What one stream sees: test_serve_process.py, test_running_process.py.)
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve_process import CHAT, Child

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import soak_streams as streams

PROMPT = {"prompt": "hello"}
DIALECTS: dict[str, tuple[str, dict[str, Any], streams.Check]] = {
    "chat": ("/v1/chat/completions", CHAT, streams.openai),
    "completions": ("/v1/completions", PROMPT, streams.openai),
    "responses": ("/v1/responses", {"input": "hello"}, streams.responses),
    "anthropic": ("/v1/messages", {"model": "fake", "max_tokens": 900, **CHAT}, streams.anthropic),
    "llama": ("/completion", PROMPT, streams.llama),
    "ollama": ("/api/chat", {"model": "fake", **CHAT}, streams.ollama),
    "generate": ("/api/generate", {"model": "fake", **PROMPT}, streams.ollama),
}
ENDLESS = {"FAKE_STEP": "0.01"}


class Crowd:
    """A client of each dialect with a stream that has begun, and one of each that waits."""

    def __init__(self, server: Child, whole: bool = True) -> None:
        self.url = server.url
        self.lines: dict[str, list[str]] = {name: [] for name in DIALECTS}
        self.broken: dict[str, Exception] = {}
        self.statuses: dict[str, int] = {}
        self.begun = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self._stream, args=(name,)) for name in DIALECTS]
        if whole:
            self.threads += [threading.Thread(target=self._ask, args=(name,)) for name in DIALECTS]
        for thread in self.threads:
            thread.start()
        for _ in DIALECTS:
            assert self.begun.acquire(timeout=20)

    def _stream(self, name: str) -> None:
        path, body, _ = DIALECTS[name]
        try:
            url = self.url + path
            with httpx.stream("POST", url, json={**body, "stream": True}, timeout=30) as got:
                for line in got.iter_lines():
                    if not line or line[0] == ":":
                        continue
                    self.lines[name].append(line)
                    if len(self.lines[name]) == 3:  # once a stream, so all have begun
                        self.begun.release()
        except httpx.HTTPError as error:
            self.broken[name] = error

    def _ask(self, name: str) -> None:
        path, body, _ = DIALECTS[name]
        try:
            asked = {**body, "stream": False}
            self.statuses[name] = httpx.post(self.url + path, json=asked, timeout=30).status_code
        except httpx.HTTPError as error:
            self.broken[name + " whole"] = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join(40)
            assert not thread.is_alive()


def submitted(server: Child) -> float:
    """How many answers the engine computes."""
    text = httpx.get(server.url + "/metrics").text
    (line,) = (x for x in text.splitlines() if x.startswith("vllm:num_requests_running{"))
    return float(line.rpartition(" ")[2])


def wait_for(true: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_all_dialects_finish_when_there_is_time(child: Callable[..., Child]) -> None:
    server = child("--shutdown-timeout", "30", FAKE_TOKENS="200", **ENDLESS).ready()
    crowd = Crowd(server)
    server.process.send_signal(signal.SIGTERM)
    server.says("Ctrl-C again")
    crowd.join()
    assert server.wait() == 0
    assert not crowd.broken
    assert set(crowd.statuses.values()) <= {200, 503}  # one that came late is refused
    for name, (_, _, check) in DIALECTS.items():
        check(crowd.lines[name])


def test_all_dialects_are_told_when_there_is_none(child: Callable[..., Child]) -> None:
    server = child("--shutdown-timeout", "1", **ENDLESS).ready()
    crowd = Crowd(server)
    wait_for(lambda: submitted(server) == 2 * len(DIALECTS))
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - began < 8
    crowd.join()
    assert not crowd.broken, "streams end, they do not break"
    assert crowd.statuses == dict.fromkeys(DIALECTS, 503)
    for name, (_, _, check) in DIALECTS.items():
        lines = crowd.lines[name]
        assert any("shutting down" in line for line in lines[-3:]), (name, lines[-3:])
        with pytest.raises(streams.Fault):
            check(lines)
    assert [line for line in server.err if "cut off" in line]


@pytest.mark.slow
def test_clients_that_do_not_read_cannot_hold_it(child: Callable[..., Child]) -> None:
    """Buffers full of what nobody reads: the end comes in bounded time all the same."""
    server = child("--shutdown-timeout", "1", FAKE_STEP="0.0005").ready()
    body = json.dumps({**CHAT, "stream": True, "n": 8, "logprobs": True, "top_logprobs": 5})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    stuck: list[socket.socket] = []
    for _ in range(3):
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", server.port))
        made.sendall((head + body).encode())
        stuck.append(made)
    wait_for(lambda: submitted(server) == 3)
    time.sleep(2)
    assert server.get("/health").status_code == 200
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    assert time.monotonic() - began < 1 + 2 + 5 + 4  # the drain, the telling, the lingering
    for each in stuck:
        each.close()


def test_what_was_cut_off_leaves_the_engine(child: Callable[..., Child]) -> None:
    """Every client is reset at once: nothing is computed for nobody."""
    server = child(**ENDLESS).ready()
    held: list[socket.socket] = []
    for path, body, _ in DIALECTS.values():
        for stream in (True, False):
            data = json.dumps({**body, "stream": stream})
            made = socket.create_connection(("127.0.0.1", server.port))
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            made.sendall((head + data).encode())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            held.append(made)
    wait_for(lambda: submitted(server) == len(held))
    for each in held:
        each.close()
    wait_for(lambda: submitted(server) == 0)
    files = f"/proc/{server.process.pid}/fd"
    wait_for(lambda: not [p for p in Path(files).iterdir() if _connected(p, server.port)])
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0 and server.err == []


def _connected(path: Path, port: int) -> bool:
    """Whether an open file of the server is a connection of its port."""
    try:
        inode = str(path.readlink()).removeprefix("socket:[").rstrip("]")
    except OSError:
        return False
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] == inode and int(fields[1].rpartition(":")[2], 16) == port:
            return fields[3] != "0A"  # listening
    return False


@pytest.mark.parametrize("unix", [False, True])
def test_killed_under_load(child: Callable[..., Child], tmp_path: Path, unix: bool) -> None:
    """Every stream breaks, none looks finished; the same address serves again at once."""
    path = tmp_path / "s"
    flags = ("--uds", str(path)) if unix else ()
    server = child(*flags, **ENDLESS)
    if unix:
        wait_for(lambda: server.out)
        transport = httpx.HTTPTransport(uds=str(path))
        with (
            httpx.Client(transport=transport, base_url="http://x", timeout=20) as client,
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as got,
        ):
            for _ in got.iter_lines():
                server.process.kill()
    else:
        crowd = Crowd(server.ready(), whole=False)
        server.process.kill()
        crowd.join()
        assert set(crowd.broken) == set(DIALECTS)
        for name, (_, _, check) in DIALECTS.items():
            with pytest.raises((streams.Fault, ValueError, IndexError)):
                check(crowd.lines[name])
    assert server.wait() == -signal.SIGKILL
    again = child(*flags, port=server.port)
    wait_for(lambda: again.out)
    transport = httpx.HTTPTransport(uds=str(path) if unix else None)
    with httpx.Client(transport=transport, base_url=again.url, timeout=20) as client:
        got = client.post("/v1/chat/completions", json=CHAT)
        assert got.json()["choices"][0]["message"]["content"] == "HELLO"
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 0 and again.err == []
