"""Requests that wait for their model: signs of life, errors, and clients that leave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gristmill.errors import SourceError
from gristmill.serve.host import Model, Report
from tests.serve.test_ollama import HELLO, Ollama, Start, serve

__all__ = ["serve"]

CHAT = "/v1/chat/completions"


@pytest.fixture
def slow(serve: Start) -> Iterator[Ollama]:
    """A server whose model ``other`` is loaded when ``opener.gate`` opens."""
    running: Ollama = serve(others=("other", "broken"))
    running.state.keep_alive = 0.05
    running.opener.gate.clear()
    need = running.opener.need

    def needs(model: Model, report: Report) -> int:
        report("packing", 1, 2)
        if model.reference == "broken":
            running.opener.gate.wait(10)
            raise SourceError("It is no model.")
        return need(model, report)

    running.opener.need = needs  # type: ignore[method-assign]
    yield running


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def post(running: Ollama, path: str, **body: Any) -> httpx.Response:
    return httpx.post(running.url + path, json=body, timeout=20)


def test_a_stream_shows_that_it_lives(slow: Ollama) -> None:
    body = {"model": "other", "messages": HELLO, "stream": True}
    with httpx.stream("POST", slow.url + CHAT, json=body, timeout=20) as got:
        assert got.status_code == 200
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = got.iter_lines()
        assert [next(lines) for _ in range(4)] == [": keep-alive", ""] * 2
        listed = httpx.get(slow.url + "/v1/models/other").json()["status"]
        assert listed == {"value": "loading", "progress": 0.5}
        slow.opener.gate.set()
        rest = [line[6:] for line in lines if line.startswith("data: ")]
    assert rest[-1] == "[DONE]"
    text = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in rest[:-1])
    assert text == "HELLO"
    until(lambda: slow.entry("other").leases == 0)


def test_an_error_after_a_sign_of_life(slow: Ollama) -> None:
    for path, body in (
        (CHAT, {"messages": HELLO}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        slow.opener.gate.clear()
        body |= {"model": "broken", "stream": True}
        with httpx.stream("POST", slow.url + path, json=body, timeout=20) as got:
            lines = got.iter_lines()
            assert next(lines) == ": keep-alive"
            slow.opener.gate.set()
            rest = [line[6:] for line in lines if line.startswith("data: ")]
        assert got.status_code == 200 and rest[1] == "[DONE]"
        told = json.loads(rest[0])["error"]
        assert told["message"] == "The model 'broken' could not be loaded: It is no model."


def test_a_response_shows_that_it_lives(slow: Ollama) -> None:
    body = {"model": "other", "input": "hello", "stream": True}
    with httpx.stream("POST", slow.url + "/v1/responses", json=body, timeout=20) as got:
        lines = got.iter_lines()
        assert next(lines) == ": keep-alive"
        slow.opener.gate.set()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    slow.opener.gate.clear()
    body["model"] = "broken"
    with httpx.stream("POST", slow.url + "/v1/responses", json=body, timeout=20) as got:
        lines = got.iter_lines()
        assert next(lines) == ": keep-alive"
        slow.opener.gate.set()
        rest = [line for line in lines if line and line != ": keep-alive"]
    assert rest[0] == "event: error" and len(rest) == 2
    told = json.loads(rest[1][6:])
    assert told["type"] == "error" and "could not be loaded" in told["message"]


def test_anthropics_sign_of_life(slow: Ollama) -> None:
    body = {"model": "other", "messages": HELLO, "max_tokens": 9, "stream": True}
    with httpx.stream("POST", slow.url + "/v1/messages", json=body, timeout=20) as got:
        lines = got.iter_lines()
        assert next(lines) == "event: ping"
        slow.opener.gate.set()
        events = [line[7:] for line in lines if line.startswith("event: ")]
    assert events[0] in ("ping", "message_start") and events[-1] == "message_stop"
    assert events.count("message_start") == 1


def test_an_early_error_keeps_its_status(slow: Ollama) -> None:
    slow.state.keep_alive = 15
    slow.opener.gate.set()
    got = post(slow, CHAT, model="broken", messages=HELLO, stream=True)
    assert got.status_code == 500 and got.json()["error"]["type"] == "server_error"
    got = post(
        slow, CHAT, model="other", messages=[{"role": "forbidden", "content": ""}], stream=True
    )
    assert got.status_code == 400
    until(lambda: slow.entry("other").leases == 0)


def test_a_whole_answer_waits(slow: Ollama) -> None:
    threading.Timer(0.2, slow.opener.gate.set).start()
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: post(slow, CHAT, model="other", messages=HELLO), range(4)):
            assert got.json()["choices"][0]["message"]["content"] == "HELLO"
    assert len(slow.opener.engines) == 1
    got = post(slow, "/tokenize", model="other", content="ab").json()
    assert got["tokens"] == [97, 98]


def test_waiting_too_long(slow: Ollama) -> None:
    slow.state.host.load_timeout = 0.1
    got = post(slow, "/v1/completions", model="other", prompt="x")
    assert got.status_code == 503 and got.headers["retry-after"] == "5"
    assert "still being loaded (packing, 50%)" in got.json()["error"]["message"]
    assert post(slow, CHAT, model="fake", messages=HELLO).status_code == 200


def test_a_client_that_leaves(slow: Ollama) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(slow.url + CHAT, json={"model": "other", "messages": HELLO}, timeout=0.2)
    until(lambda: slow.entry("other").waiting == 0)
    body = {"model": "other", "messages": HELLO, "stream": True}
    with httpx.stream("POST", slow.url + CHAT, json=body, timeout=20) as got:
        lines = got.iter_lines()  # kept: a dropped iterator closes the connection
        next(lines)
        assert slow.entry("other").waiting == 1
    until(lambda: slow.entry("other").waiting == 0)
    slow.opener.gate.set()
    until(lambda: slow.entry("other").stage == "loaded")
    assert slow.entry("other").leases == 0 and not slow.opener.engines[0].requests


def test_ollama_has_no_sign_of_life(slow: Ollama) -> None:
    threading.Timer(0.3, slow.opener.gate.set).start()
    got = post(slow, "/api/generate", model="broken", prompt="x")
    assert got.status_code == 500
    assert got.json() == {"error": "The model 'broken' could not be loaded: It is no model."}
