"""The ``anthropic`` package against a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx
import pytest

from gristmill.serve.anthropic.shape import signature
from tests.serve.blocks import Model
from tests.serve.conftest import Harness

Start = Callable[..., tuple[Model, Harness]]
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


@contextmanager
def client(running: Harness, key: str = "x") -> Generator[Any]:
    with anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0) as made:
        yield made


def ask(made: Any, messages: Any = HELLO, **more: Any) -> Any:
    return made.messages.create(
        **{"model": "fake", "max_tokens": 500, "messages": messages, **more}
    )


def test_message(model: Start) -> None:
    fake, running = model("Hi é 🙂.")
    with client(running) as made:
        got = ask(made, system="Be brief.", metadata={"user_id": "me"}, service_tier="auto")
    assert got.type == "message" and got.role == "assistant" and got.id.startswith("msg_")
    assert [(b.type, b.text) for b in got.content] == [("text", "Hi é 🙂.")]
    assert (got.stop_reason, got.stop_sequence, got.model) == ("end_turn", None, "fake")
    prompt = len(fake.engine.requests[0].prompt)
    assert got.usage.input_tokens == prompt - 2 and got.usage.cache_read_input_tokens == 2
    assert got.usage.cache_creation_input_tokens == 0 and got._request_id
    assert got.usage.output_tokens == len("Hi é 🙂.".encode()) + 1
    assert fake.engine.requests[0].client == "127.0.0.1\nme"
    assert fake.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_sampling_and_stops(model: Start) -> None:
    fake, running = model("one STOP two")
    with client(running) as made:
        ask(
            made,
            stop_sequences=["STOP"],
            extra_body={
                "temperature": 0.5,
                "top_p": 0.25,
                "top_k": 7,
                "min_p": 0.125,
                "seed": 3,
            },
        )
        params = fake.engine.requests[0].sampling
        assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, 7)
        assert (params.min_p, params.seed, params.stop) == (0.125, 3, ("STOP",))
        got = ask(made, max_tokens=3)
        assert (got.stop_reason, got.content[0].text) == ("max_tokens", "one")


SAYS = '<think>First, why?</think>So: <call>add {"a": 1, "b": [2]}</call><call>now </call>'


def test_thinking_and_tools_whole_and_streamed(model: Start) -> None:
    fake, running = model(SAYS)
    more = {"tools": [TOOL], "thinking": {"type": "adaptive"}}
    with client(running) as made:
        got = ask(made, **more)
        with made.messages.stream(model="fake", max_tokens=500, messages=HELLO, **more) as stream:
            events = list(stream)
            final = stream.get_final_message()
    assert [b.type for b in got.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert got.content[0].thinking == "First, why?"
    assert got.content[0].signature == signature("First, why?")
    assert got.content[1].text == "So: "
    assert (got.content[2].name, got.content[2].input) == ("add", {"a": 1, "b": [2]})
    assert (got.content[3].name, got.content[3].input) == ("now", {})
    assert got.content[2].id != got.content[3].id
    assert got.stop_reason == "tool_use"
    plain = [each.model_dump(exclude={"id", "parsed_output", "content"}) for each in (got, final)]
    assert plain[0] == plain[1]
    blocks = [[b.to_dict() for b in each.content] for each in (got, final)]
    assert blocks[0] == blocks[1]
    assert "".join(e.text for e in events if e.type == "text") == "So: "
    assert fake.variables["enable_thinking"] is True
    assert list(fake.seen[-1].tools) == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": TOOL["input_schema"],
            },
        }
    ]


def test_event_order(model: Start) -> None:
    _, running = model("<think>a</think>b<call>f {}</call>")
    body = {"model": "fake", "max_tokens": 90, "messages": HELLO, "stream": True}
    with running.client() as http:
        got = http.post("/v1/messages?beta=true", json=body)
    assert got.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n") for part in got.text.strip().split("\n\n")]
    values = [json.loads(lines[1].removeprefix("data: ")) for lines in events]
    assert [lines[0].removeprefix("event: ") for lines in events] == [v["type"] for v in values]
    told = [v.get("delta", {}).get("type", v["type"]) for v in values]
    assert told == [
        "message_start",
        "content_block_start", "thinking_delta", "signature_delta", "content_block_stop",
        "content_block_start", "text_delta", "content_block_stop",
        "content_block_start", "input_json_delta", "input_json_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    indices = [v["index"] for v in values if "index" in v]
    assert indices == [0] * 4 + [1] * 3 + [2] * 4
    start = values[0]["message"]
    assert start["stop_reason"] is None and start["content"] == []
    assert start["usage"]["input_tokens"] > 0
    assert values[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_tool_results_go_back(model: Start) -> None:
    fake, running = model(SAYS, "Three.")
    with client(running) as made:
        first = ask(made, tools=[TOOL])
        history = [
            *HELLO,
            {"role": "assistant", "content": first.content},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "3"},
                    {
                        "type": "tool_result",
                        "tool_use_id": first.content[3].id,
                        "is_error": True,
                        "content": [{"type": "text", "text": "no clock"}],
                        "cache_control": {"type": "ephemeral"},
                    },
                    {"type": "text", "text": "Well?"},
                ],
            },
        ]
        second = ask(made, history, tools=[TOOL])
    assert second.content[0].text == "Three."
    _, assistant, one, two, user = fake.messages
    assert assistant["reasoning_content"] == "First, why?" and assistant["content"] == "So: "
    assert [c["function"]["name"] for c in assistant["tool_calls"]] == ["add", "now"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": [2]}
    assert one == {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"}
    assert two["content"] == "Error: no clock" and user["content"] == "Well?"


def test_like_claude_code(model: Start) -> None:
    fake, running = model("ok")
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=123;"},
        {"type": "text", "text": "You are a coder.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}},
    ]
    tools = [{**TOOL, "name": f"tool_{i}"} for i in range(20)]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "<reminder>"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
        },
    ]
    with (
        client(running) as made,
        made.beta.messages.stream(
            model="fake",
            max_tokens=100,
            system=system,
            tools=tools,
            messages=messages,
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
            thinking={"type": "disabled"},
            metadata={"user_id": "user_1"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ) as stream,
    ):
        assert stream.get_final_text() == "ok"
    assert len(fake.seen[-1].tools) == 20
    assert fake.variables["enable_thinking"] is False
    assert fake.messages == [
        {"role": "system", "content": "You are a coder.\n\nBe careful."},
        {"role": "user", "content": "<reminder>\nhi"},
    ]


def test_prefill_and_documents(model: Start) -> None:
    fake, running = model("B)")
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "all of it"},
    }
    with client(running) as made:
        ask(
            made,
            [
                {"role": "user", "content": [document, {"type": "text", "text": "A or B?"}]},
                {"role": "assistant", "content": "The answer is ("},
            ],
        )
    chat = fake.seen[-1]
    assert chat.continue_final_message and not chat.add_generation_prompt
    assert fake.messages[0]["content"] == "Notes\nall of it\nA or B?"


def test_count_tokens(model: Start) -> None:
    fake, running = model("ok")
    with client(running) as made:
        counted = made.messages.count_tokens(
            model="fake", messages=HELLO, system="Be brief.", tools=[TOOL]
        )
        got = ask(made, system="Be brief.", tools=[TOOL])
        long = made.messages.count_tokens(
            model="fake", messages=[{"role": "user", "content": "a" * 9000}]
        )
    usage = got.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert long.input_tokens > 9000
    assert len(fake.engine.requests) == 1


def test_models(model: Start) -> None:
    _, running = model("ok")
    with client(running) as made:
        page = made.models.list()
        assert [(m.id, m.type, m.display_name) for m in page] == [
            ("fake", "model", "fake"),
            ("alias", "model", "alias"),
        ]
        assert page.has_more is False and page.first_id == "fake" and page.last_id == "alias"
        assert made.models.retrieve("alias").created_at.year == 1970


def test_errors_are_anthropics(model: Start) -> None:
    _, running = model("ok")
    with client(running) as made:
        with pytest.raises(anthropic.NotFoundError) as missing:
            ask(made, model="claude-opus-4-1")
        refused: Any = missing.value.body
        assert refused["type"] == "error"
        assert refused["error"]["type"] == "not_found_error"
        assert refused["request_id"] == missing.value.response.headers["x-request-id"]
        assert "'fake', 'alias'" in str(missing.value)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            ask(made, [{"role": "user", "content": "a" * 9000}])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "'max_tokens' is missing"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "is an image"),
    ({"messages": [{"role": "user", "content": [7]}]}, r"messages\[0\].content\[0\]"),
    ({"messages": [{"role": "user"}]}, r"messages\[0\].content"),
    (
        {"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "url"}}]}]},
        "document of type 'url'",
    ),
    (
        {"messages": [*HELLO, {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "a", "name": "b", "input": {}}]}]},
        "server_tool_use",
    ),
    (
        {"messages": [*HELLO, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
        "tool_result",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tools": [{"name": "a"}]}, r"tools\[0\].input_schema"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"n": 2}, "'n'"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": 7}, "stop_sequences"),
    ({"temperature": -1}, "temperature"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, r"edits\[0\]"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"effort": 7}}, "output_config.effort"),
    ({"metadata": {"user_id": 7}}, "metadata.user_id"),
    ({"system": [{"type": "image"}]}, r"system\[0\]"),
]  # fmt: skip


def test_what_cannot_be_honoured_is_refused_by_name(model: Start) -> None:
    _, running = model("ok")
    with running.client() as http:
        for change, told in REFUSED:
            body = {"model": "fake", "max_tokens": 9, "messages": HELLO} | change
            got = http.post("/v1/messages", json=body)
            assert got.status_code == 400, (change, got.text)
            error = got.json()
            assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
            assert re.search(told, error["error"]["message"]), (told, error)


def test_keys(model: Start) -> None:
    _, running = model("ok", api_keys=("sesame",))
    with client(running, "sesame") as made:
        assert ask(made).content[0].text == "ok"
    with client(running, "wrong") as made:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(made)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"


def test_an_error_in_the_middle_is_an_event(model: Start) -> None:
    fake, running = model("abcdef" * 50)
    fake.engine.step_seconds = 0.01
    with (
        client(running) as made,
        pytest.raises(anthropic.APIStatusError, match="out of order"),
        made.messages.stream(model="fake", max_tokens=900, messages=HELLO) as stream,
    ):
        for i, _ in enumerate(stream):
            if i == 5:
                fake.engine.fail("It is out of order.")


def test_a_ping_while_nothing_comes(model: Start) -> None:
    fake, running = model("ok")
    running.state.keep_alive = 0.1
    fake.engine.hold.clear()
    body = {"model": "fake", "max_tokens": 9, "messages": HELLO, "stream": True}
    with (
        httpx.Client(base_url=running.url, timeout=20) as http,
        http.stream("POST", "/v1/messages", json=body) as got,
    ):
        lines = got.iter_lines()
        assert next(lines) == "event: ping" and next(lines) == 'data: {"type":"ping"}'
        fake.engine.hold.set()
        assert any('"message_stop"' in line for line in lines)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_client_that_leaves_stops_its_work(model: Start, path: str) -> None:
    fake, running = model("abcdef" * 300)
    fake.engine.step_seconds = 0.01
    body = {"max_tokens": 3000, "messages": HELLO} if path == "/v1/messages" else {"input": "x"}
    with (
        httpx.Client(base_url=running.url, timeout=20) as http,
        http.stream("POST", path, json={**body, "stream": True}) as got,
    ):
        assert next(got.iter_lines()).startswith("event: ")
    end = time.monotonic() + 10
    while not fake.engine.aborted and time.monotonic() < end:
        time.sleep(0.01)
    assert fake.engine.aborted and not running.state.bridge.tickets
