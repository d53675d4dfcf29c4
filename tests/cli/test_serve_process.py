"""The serving process, from its first moment to its exit status."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny import tiny_llama

SCRIPT = Path(__file__).with_name("fake_serve.py")
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


class Child:
    """A running ``gristmill serve`` and what it says."""

    def __init__(
        self,
        *flags: str,
        port: int | None = None,
        program: Any = (str(SCRIPT),),
        quiet: Any = ("--disable-uvicorn-access-log",),
        **environment: str,
    ) -> None:
        self.port = port or free_port()
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", *flags, "--port", str(self.port), *quiet],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self.readers = [
            threading.Thread(target=self._read, args=each, daemon=True)
            for each in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self.readers:
            reader.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            lines.append(line.rstrip("\n"))

    def get(self, path: str, **more: Any) -> Any:
        return httpx.get(self.url + path, timeout=10, **more)

    def answers(self) -> Any:
        """Waits until HTTP answers at all."""
        end = time.monotonic() + 20
        while True:
            try:
                return self.get("/health")
            except httpx.TransportError:
                assert time.monotonic() < end and self.process.poll() is None, self.err
                time.sleep(0.02)

    def ready(self) -> Any:
        end = time.monotonic() + 20
        while self.answers().status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)
        return self

    def says(self, text: str) -> None:
        """Waits until it has said so on stderr.

        After a signal: two that arrive before the process runs again are one to it.
        """
        end = time.monotonic() + 20
        while not any(text in line for line in self.err):
            assert time.monotonic() < end and self.process.poll() is None, self.err
            time.sleep(0.02)

    def wait(self, seconds: float = 15) -> Any:
        code = self.process.wait(seconds)
        for reader in self.readers:
            reader.join(5)
        return code


def free_port() -> Any:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_from_loading_to_a_clean_end(child: Callable[..., Child]) -> None:
    server = child("--alias", "mill", FAKE_LOAD_SECONDS="1.5")
    loading = server.answers()
    assert loading.status_code == 503
    assert loading.json()["error"]["message"] == "Loading model"
    assert loading.json()["progress"]["stage"] in ("starting", "packing")
    server.ready()
    got = httpx.post(server.url + "/v1/chat/completions", json=CHAT)
    assert got.json()["choices"][0]["message"]["content"] == "HELLO"
    block = "\n".join(server.out)
    for part in ("Q4_1", "98 MB", "10,000 tokens", "4,096 tokens a request", "2 threads", "mill"):
        assert part in block
    command = block[block.index("curl ") :].strip()
    assert shutil.which("curl"), "the ready block's request is tried with curl"
    shown = subprocess.run(
        ["bash", "-c", command + " -s"], check=True, capture_output=True, timeout=20
    )
    assert json.loads(shown.stdout)["object"] == "chat.completion"
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.err == []


def test_a_real_model(child: Callable[..., Child], tmp_path: Path) -> None:
    """The whole of it: file, kernels, engine, wire, and an end without a word."""
    path = tmp_path / "tiny.gguf"
    tiny_llama(path, encoding="q8_0")
    server = child(str(path), "--kv-cache-memory-bytes", "64M", program=("-m", "gristmill"))
    server.ready()
    body = {**CHAT, "temperature": 0, "max_tokens": 8}
    whole = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=30).json()
    assert whole["usage"]["completion_tokens"] == 8
    stream = httpx.post(
        server.url + "/v1/chat/completions", json={**body, "stream": True}, timeout=30
    )
    chunks = [json.loads(line[6:]) for line in stream.text.split("\n\n") if line[6:7] == "{"]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    block = "\n".join(server.out)
    assert "llama, Q8_0" in block and "tiny" in block
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.err == []


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 16, b"x" * 100])
def test_a_file_that_is_no_model(
    child: Callable[..., Child], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    server = child(str(path), program=("-m", "gristmill"))
    assert server.wait() == 1
    assert len(server.err) == 1 and server.err[0].startswith("gristmill: error: ")


def test_port_in_use(child: Callable[..., Child]) -> None:
    first = child().ready()
    second = child(port=first.port)
    assert second.wait() == 1
    assert len(second.err) == 1
    assert str(first.port) in second.err[0] and "--port" in second.err[0]
    assert first.get("/health").status_code == 200


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
def test_address_of_another(child: Callable[..., Child], host: str) -> None:
    server = child("--host", host)
    assert server.wait() == 1
    assert len([line for line in server.err if "warning" not in line]) == 1
    assert host in server.err[-1]


def test_model_that_cannot_be_had(child: Callable[..., Child]) -> None:
    server = child("missing")
    assert server.wait() == 1
    assert server.err == ["gristmill: error: There is no model 'missing'."]


def test_bug_while_loading(child: Callable[..., Child]) -> None:
    server = child("bug")
    assert server.wait() == 1
    assert len(server.err) == 1 and "KeyError" in server.err[0] and "--debug" in server.err[0]
    server = child("bug", "--debug")
    assert server.wait() == 1
    assert any("Traceback" in line for line in server.err)


def test_engine_failure_ends_the_process(child: Callable[..., Child]) -> None:
    server = child("breaks", FAKE_STEP="0.01").ready()
    with httpx.stream(
        "POST", server.url + "/v1/chat/completions", json={**CHAT, "stream": True}, timeout=10
    ) as got:
        text = got.read().decode()
    assert got.status_code == 500 or "The mill" in text
    assert server.wait() == 1
    assert server.err[-1] == "gristmill: error: The mill broke."


def test_failure_ends_even_a_hanging_process(child: Callable[..., Child]) -> None:
    server = child("hangs").ready()
    with pytest.raises(httpx.TransportError):
        httpx.post(server.url + "/v1/chat/completions", json=CHAT, timeout=20)
    assert server.wait() == 1
    assert server.err[-1] == "gristmill: error: A step has made no progress."


def test_stop_lets_a_stream_be_told(child: Callable[..., Child]) -> None:
    server = child("--shutdown-timeout", "1", FAKE_STEP="0.01").ready()
    with httpx.stream(
        "POST", server.url + "/v1/chat/completions", json={**CHAT, "stream": True}, timeout=10
    ) as got:
        lines = got.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.says("Ctrl-C again")
        refused = httpx.post(server.url + "/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["error"]["type"] == "unavailable_error"
    assert server.wait() == 0
    assert any("Ctrl-C again" in line for line in server.err)


def test_second_signal_is_immediate(child: Callable[..., Child]) -> None:
    server = child("--shutdown-timeout", "100", FAKE_STEP="0.01").ready()
    with httpx.stream(
        "POST", server.url + "/v1/chat/completions", json={**CHAT, "stream": True}, timeout=10
    ) as got:
        lines = got.iter_lines()  # kept: a dropped iterator closes the connection
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.says("Ctrl-C again")
        server.process.send_signal(signal.SIGINT)
        assert server.wait(3) == 130


def test_stop_while_loading(child: Callable[..., Child]) -> None:
    server = child(FAKE_LOAD_SECONDS="60")
    server.answers()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait(3) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_before_the_loop_runs(child: Callable[..., Child], number: signal.Signals) -> None:
    server = child(FAKE_SLOW_START="60")
    end = time.monotonic() + 20
    while not server.err:
        assert time.monotonic() < end
        time.sleep(0.02)
    server.process.send_signal(number)
    assert server.wait(3) == 128 + number
    assert server.err == ["starting slowly"]


def test_bytes_that_are_no_http_are_not_logged(child: Callable[..., Child]) -> None:
    server = child().ready()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "eA=="}
    assert server.get("/health", headers=upgrade).status_code == 200
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(b"no HTTP\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert server.err == []


def test_idle_takes_no_time(child: Callable[..., Child]) -> Any:
    server = child().ready()
    time.sleep(0.5)

    def ticks() -> Any:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def switches() -> Any:
        total = 0
        for task in Path(f"/proc/{server.process.pid}/task").iterdir():
            status = (task / "status").read_text()
            found = re.search(r"voluntary_ctxt_switches:\s+(\d+)", status)
            assert found
            total += int(found[1])
        return total

    before, woken = ticks(), switches()
    time.sleep(2)
    assert ticks() - before <= 1
    assert switches() - woken <= 6


def test_open_to_the_network(child: Callable[..., Child]) -> None:
    server = child("--host", "0.0.0.0").ready()
    assert len(server.err) == 1 and "--api-key" in server.err[0]


def test_key_from_the_environment_and_flags_without_meaning(child: Callable[..., Child]) -> None:
    flags = ("--n-gpu-layers", "99", "--jinja", "--gpu_memory_utilization", "0.9")
    server = child("--host", "0.0.0.0", *flags, VLLM_API_KEY="secret").ready()
    assert server.get("/v1/models").status_code == 401
    key = {"Authorization": "Bearer secret"}
    assert server.get("/v1/models", headers=key).status_code == 200
    assert len(server.err) == 3
    assert all("has no meaning here" in line for line in server.err)
