"""A real server with a folder of prefixes, killed and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.cli.test_serve_process import Child
from tests.tiny import tiny_llama

SYSTEM = "You are the miller of a small town, and you speak of grain and stones. " * 12


def ask(server: Child, user: str) -> tuple[str, int, int]:
    """The text, the prompt's tokens, and how many of them were cached."""
    body = {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
        "temperature": 0,
        "max_tokens": 12,
    }
    got = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=30)
    assert got.status_code == 200, got.text
    answer = got.json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def test_a_system_prompt_survives_kill_minus_nine(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    path, folder = tmp_path / "tiny.gguf", tmp_path / "prefixes"
    tiny_llama(path, encoding="q8_0")
    flags = (str(path), "--kv-cache-memory-bytes", "64M", "--prefix-cache-dir", str(folder))

    def start(*more: str) -> Child:
        server = child(*flags, *more, program=("-m", "gristmill"))
        server.ready()
        return server

    server = start()
    first = [ask(server, user) for user in ("hello", "good day")]
    assert first[0][2] == 0 and first[1][2] > 0
    whole = (first[1][2]) // 32
    end = time.monotonic() + 10
    while len(list(folder.glob("*/*-1"))) < whole:
        assert time.monotonic() < end
        time.sleep(0.02)
    other = child(*flags, program=("-m", "gristmill"))
    assert other.wait() != 0
    assert any("in use by another server" in line for line in other.err)
    # Killed in the middle of whatever it does.
    server.process.send_signal(signal.SIGKILL)
    server.wait()
    server = start()
    text, tokens, cached = ask(server, "hello")
    assert (text, tokens) == first[0][:2], "the same text from the folder"
    assert cached >= whole * 32
    # Half of the files spoilt: dropped, and the text is the same.
    server.process.send_signal(signal.SIGKILL)
    server.wait()
    for spoilt in sorted(folder.glob("*/*-1"))[::2]:
        spoilt.write_bytes(spoilt.read_bytes()[:-100] + bytes(100))
    server = start()
    text, tokens, cached = ask(server, "hello")
    assert (text, tokens) == first[0][:2]
    assert cached < whole * 32
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
