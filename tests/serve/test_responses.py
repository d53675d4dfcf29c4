"""``/v1/responses`` with the ``openai`` package, against a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.serve.blocks import Model
from tests.serve.conftest import Harness

Start = Callable[..., tuple[Model, Harness]]
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
SAYS = '<think>First, why?</think>So: <call>add {"a": 1}</call><call>now </call>'


@contextmanager
def client(running: Harness) -> Generator[Any]:
    with openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as made:
        yield made.responses


def test_response(model: Start) -> None:
    fake, running = model("Hi é 🙂.")
    with client(running) as made:
        got = made.create(
            model="fake",
            input="hello",
            instructions="Be brief.",
            max_output_tokens=100,
            temperature=0.5,
            metadata={"a": "b"},
            user="me",
        )
        assert made.retrieve(got.id).model_dump() == got.model_dump()
    assert got.output_text == "Hi é 🙂." and got.status == "completed" and got.error is None
    assert got.id.startswith("resp_") and got.output[0].id.startswith("msg_")
    assert (got.instructions, got.metadata, got.user) == ("Be brief.", {"a": "b"}, "me")
    assert got.usage.input_tokens == len(fake.engine.requests[0].prompt)
    assert got.usage.input_tokens_details.cached_tokens == 2
    assert got.usage.output_tokens == len("Hi é 🙂.".encode()) + 1
    assert got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens
    assert got.usage.output_tokens_details.reasoning_tokens == 0
    request = fake.engine.requests[0]
    assert request.client.endswith("\nme")
    assert request.sampling.max_tokens == 100
    assert fake.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


@pytest.mark.parametrize("summary", [None, "auto"])
def test_streamed_and_whole_are_the_same(model: Start, summary: str | None) -> None:
    _, running = model(SAYS)
    more: dict[str, Any] = {"tools": [TOOL], "reasoning": {"effort": "high", "summary": summary}}
    with client(running) as made:
        whole = made.create(model="fake", input="hello", **more)
        with made.stream(model="fake", input="hello", **more) as stream:
            events = list(stream)
            final = stream.get_final_response()
    assert [item.type for item in whole.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    thought = whole.output[0].summary if summary else whole.output[0].content
    assert [each.text for each in thought] == ["First, why?"]
    assert [item.arguments for item in whole.output[2:]] == ['{"a": 1}', "{}"]
    assert whole.output[2].call_id == "call_1"
    # One token a byte; the marks are counted.
    assert whole.usage.output_tokens_details.reasoning_tokens == 26
    changing = {"id", "created_at", "completed_at", "parsed", "parsed_arguments"}
    plain = [_without(each.to_dict(), changing) for each in (whole, final)]
    assert plain[0] == plain[1]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    inner = "reasoning_summary_text" if summary else "reasoning_text"
    part = "reasoning_summary_part" if summary else "content_part"
    order = list(dict.fromkeys((e.type, getattr(e, "output_index", None)) for e in events))
    assert [f"{kind.removeprefix('response.')} {at}" for kind, at in order] == [
        "created None", "in_progress None",
        "output_item.added 0", f"{part}.added 0", f"{inner}.delta 0", f"{inner}.done 0",
        f"{part}.done 0", "output_item.done 0",
        "output_item.added 1", "content_part.added 1", "output_text.delta 1",
        "output_text.done 1", "content_part.done 1", "output_item.done 1",
        "output_item.added 2", "function_call_arguments.delta 2",
        "function_call_arguments.done 2", "output_item.done 2",
        "output_item.added 3", "function_call_arguments.delta 3",
        "function_call_arguments.done 3", "output_item.done 3",
        "completed None",
    ]  # fmt: skip


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, names) for k, v in value.items() if k not in names}
    return [_without(each, names) for each in value] if isinstance(value, list) else value


def test_conversation_by_id(model: Start) -> None:
    fake, running = model(SAYS, "Three.", "Yes.")
    with client(running) as made:
        one = made.create(model="fake", input="1 + 2?", instructions="Add.", tools=[TOOL])
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
            for item in one.output[2:]
        ]
        two = made.create(model="fake", input=outputs, previous_response_id=one.id, tools=[TOOL])
        assert two.output_text == "Three." and two.previous_response_id == one.id
        three = made.create(model="fake", input="Sure?", previous_response_id=two.id)
        assert three.output_text == "Yes."
        user, assistant, first, second, answer, last = fake.messages
        assert user == {"role": "user", "content": "1 + 2?"}
        assert assistant["reasoning_content"] == "First, why?" and assistant["content"] == "So: "
        assert [c["id"] for c in assistant["tool_calls"]] == ["call_1", "call_2"]
        assert first == {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"}
        assert second["name"] == "now" and answer["content"] == "Three."
        assert last == {"role": "user", "content": "Sure?"}
        listed = made.input_items.list(two.id, order="asc")
        assert [item.call_id for item in listed] == ["call_1", "call_2"]
        pages = made.input_items.list(two.id, order="asc", limit=1)
        assert [item.call_id for item in pages] == ["call_1", "call_2"]
        made.delete(one.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            made.retrieve(one.id)
        with pytest.raises(openai.BadRequestError, match="not stored any more"):
            made.create(model="fake", input="x", previous_response_id=three.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            made.create(model="fake", input="x", previous_response_id="resp_0")


def test_conversation_by_the_client(model: Start) -> None:
    fake, running = model(SAYS, "Three.")
    with client(running) as made:
        one = made.create(
            model="fake", input="1 + 2?", store=False, include=["reasoning.encrypted_content"]
        )
        assert one.store is False
        with pytest.raises(openai.NotFoundError):
            made.retrieve(one.id)
        sealed = one.output[0].encrypted_content
        assert sealed and "First" not in sealed
        history: list[Any] = [
            {"role": "developer", "content": "Add."},
            {"role": "system", "content": [{"type": "input_text", "text": "Well."}]},
            {"role": "user", "content": "1 + 2?"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed},
            *[item.to_dict() for item in one.output[1:]],
            {"type": "function_call_output", "call_id": "call_1", "output": [
                {"type": "input_text", "text": "3"}]},
        ]  # fmt: skip
        made.create(model="fake", input=history, store=False)
    system, _, assistant, result = fake.messages
    assert system == {"role": "system", "content": "Add.\n\nWell."}
    assert assistant["reasoning_content"] == "First, why?" and len(assistant["tool_calls"]) == 2
    assert result["content"] == "3"


def test_item_references(model: Start) -> None:
    fake, running = model("Hi.", "Ho.")
    with client(running) as made:
        one = made.create(model="fake", input="hello")
        reference = {"type": "item_reference", "id": one.output[0].id}
        two = made.create(model="fake", input=[reference, {"role": "user", "content": "again"}])
        assert fake.messages == [
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "again"},
        ]
        made.delete(one.id)
        made.create(model="fake", input="more", previous_response_id=two.id)
        assert [m["content"] for m in fake.messages] == ["Hi.", "again", "Ho.", "more"]
        with pytest.raises(openai.BadRequestError, match="msg_1_2"):
            made.create(model="fake", input=[{"type": "item_reference", "id": "msg_1_2"}])


def test_incomplete(model: Start) -> None:
    _, running = model("one two")
    with client(running) as made:
        got = made.create(model="fake", input="x", max_output_tokens=3)
        events = list(made.create(model="fake", input="x", max_output_tokens=3, stream=True))
    assert got.status == "incomplete" and got.output_text == "one"
    assert got.incomplete_details.reason == "max_output_tokens"
    assert got.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[0].status == "incomplete"


def test_logprobs(model: Start) -> None:
    _, running = model("<think>x</think>é.")
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with client(running) as made:
        got = made.create(model="fake", input="x", **more)
        events = list(made.create(model="fake", input="x", stream=True, **more))
    scores = got.output[1].content[0].logprobs
    assert b"".join(bytes(each.bytes) for each in scores).endswith("é.".encode())
    assert [len(each.top_logprobs) for each in scores] == [2] * len(scores)
    streamed = [
        each.to_dict()
        for e in events
        if e.type == "response.output_text.delta"
        for each in e.logprobs
    ]
    assert streamed == [each.to_dict() for each in scores]


def test_allowed_tools(model: Start) -> None:
    fake, running = model("ok")
    other = {**TOOL, "name": "other"}
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "add"}],
    }
    with client(running) as made:
        got = made.create(model="fake", input="x", tools=[TOOL, other], tool_choice=choice)
    assert len(got.tools) == 2
    assert [tool["function"]["name"] for tool in fake.seen[-1].tools] == ["add"]  # type: ignore[index]


def test_truncation(model: Start) -> None:
    fake, running = model("ok")
    history: list[Any] = [{"role": "system", "content": "Stay."}]
    for i in range(10):
        history += [
            {"role": "user", "content": f"{i}" + "a" * 900},
            {"role": "assistant", "content": "yes"},
        ]
    history.append({"role": "user", "content": "last"})
    with client(running) as made:
        with pytest.raises(openai.BadRequestError) as caught:
            made.create(model="fake", input=history)
        body: Any = caught.value.body
        assert body["type"] == "exceed_context_size_error"
        got = made.create(model="fake", input=history, truncation="auto")
        assert got.output_text == "ok"
        kept = fake.engine.requests[-1].prompt
        messages = json.loads(bytes(kept[1:]).decode())[0]
        assert messages[0]["content"] == "Stay." and messages[-1]["content"] == "last"
        assert messages[1]["role"] == "user" and 5 <= len(messages) < 12
        with pytest.raises(openai.BadRequestError):
            made.create(model="fake", input="a" * 9000, truncation="auto")


def test_input_tokens(model: Start) -> None:
    _, running = model("ok")
    with client(running) as made:
        counted = made.input_tokens.count(model="fake", input="hello", tools=[TOOL])
        got = made.create(model="fake", input="hello", tools=[TOOL])
    assert counted.input_tokens == got.usage.input_tokens


def wait(made: Any, id_: str) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        got = made.retrieve(id_)
        if got.status not in ("queued", "in_progress"):
            return got
        time.sleep(0.02)
    raise AssertionError("it does not end")


def test_background(model: Start) -> None:
    fake, running = model("one two")
    fake.engine.hold.clear()
    with client(running) as made:
        got = made.create(model="fake", input="x", background=True)
        assert got.status == "queued" and got.background and got.output == []
        assert made.retrieve(got.id).status in ("queued", "in_progress")
        host: Any = running.state.host
        assert host.first.leases == 1  # the model is not unloaded meanwhile
        with pytest.raises(openai.BadRequestError, match="in progress"):
            made.create(model="fake", input="x", previous_response_id=got.id)
        fake.engine.hold.set()
        done = wait(made, got.id)
        assert done.status == "completed" and done.output_text == "one two"
        assert done.usage.output_tokens == 8 and host.first.leases == 0
        assert made.cancel(got.id).status == "completed"
        plain = made.create(model="fake", input="x")
        with pytest.raises(openai.BadRequestError, match="background"):
            made.cancel(plain.id)
        with pytest.raises(openai.BadRequestError, match="store"):
            made.create(model="fake", input="x", background=True, store=False)


def test_background_cancelled_deleted_failed(model: Start) -> None:
    fake, running = model("abc" * 400)
    fake.engine.step_seconds = 0.01
    with client(running) as made:
        got = made.create(model="fake", input="x", background=True)
        while not made.retrieve(got.id).output:
            time.sleep(0.02)
        gone = made.cancel(got.id)
        assert gone.status == "cancelled" and gone.output_text.startswith("a")
        assert made.retrieve(got.id).status == "cancelled"
        assert len(fake.engine.aborted) == 1
        other = made.create(model="fake", input="x", background=True)
        made.delete(other.id)
        assert len(fake.engine.aborted) == 2
        with pytest.raises(openai.NotFoundError):
            made.retrieve(other.id)
        third = made.create(model="fake", input="x", background=True)
        fake.engine.fail("It is out of order.")
        failed = wait(made, third.id)
        assert failed.status == "failed" and failed.error.message == "It is out of order."
    assert not running.state.bridge.tickets


def test_background_stream_can_be_taken_up_again(model: Start) -> None:
    fake, running = model("one two three")
    fake.engine.step_seconds = 0.01
    with client(running) as made:
        seen = []
        with made.create(model="fake", input="x", background=True, stream=True) as stream:
            for event in stream:
                seen.append(event)
                if len(seen) == 6:
                    break
        id_ = seen[0].response.id
        rest = list(made.retrieve(id_, stream=True, starting_after=seen[-1].sequence_number))
        again = list(made.retrieve(id_, stream=True))
        with pytest.raises(openai.BadRequestError, match="streamed again"):
            list(made.retrieve(made.create(model="fake", input="x").id, stream=True))
    numbers = [e.sequence_number for e in [*seen, *rest]]
    assert numbers == list(range(len(numbers))) == [e.sequence_number for e in again]
    assert again[-1].type == "response.completed"
    text = "".join(e.delta for e in again if e.type == "response.output_text.delta")
    assert text == again[-1].response.output_text == "one two three"


def test_an_error_in_the_middle_is_a_failed_response(model: Start) -> None:
    fake, running = model("abcdef" * 50)
    fake.engine.step_seconds = 0.01
    with client(running) as made:
        events = []
        for event in made.create(model="fake", input="x", stream=True):
            events.append(event)
            if len(events) == 8:
                fake.engine.fail("It is out of order.")
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.message == "It is out of order."
        assert made.retrieve(events[-1].response.id).status == "failed"


def test_no_store(model: Start) -> None:
    _, running = model("ok", response_store_bytes=0)
    with client(running) as made:
        got = made.create(model="fake", input="x")
        assert got.store is False
        with pytest.raises(openai.NotFoundError):
            made.retrieve(got.id)
        with pytest.raises(openai.BadRequestError, match="'store'"):
            made.create(model="fake", input="x", store=True)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "'input'"),
    ({"input": []}, "'input'"),
    ({"input": 7}, "'input'"),
    ({"input": [7]}, r"input\[0\]"),
    ({"input": [{"type": "computer_call"}]}, "computer_call"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
    ({"input": [{"role": "tool", "content": "x"}]}, r"input\[0\].role"),
    ({"input": [{"type": "function_call", "name": "x", "arguments": ""}]}, "call_id"),
    ({"input": [{"type": "item_reference"}]}, "id"),
    ({"tools": [{"type": "web_search"}]}, "web_search"),
    ({"tools": [{"type": "function"}]}, r"tools\[0\].name"),
    ({"tool_choice": {"type": "mcp"}}, "mcp"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "b"}]}}, "'b'"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_tokens": 7}, "max_tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"truncation": "some"}, "truncation"),
    ({"include": ["thoughts"]}, "include"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"reasoning": {"summary": "concise"}}, "reasoning.summary"),
    ({"reasoning": {"effort": 7}}, "reasoning.effort"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"background": 1}, "background"),
    ({"n": 2}, "'n'"),
    ({"stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
]


def test_what_cannot_be_honoured_is_refused_by_name(model: Start) -> None:
    _, running = model("ok")
    with running.client() as http:
        for change, told in REFUSED:
            got = http.post("/v1/responses", json={"model": "fake", "input": "x"} | change)
            assert got.status_code == 400, (change, got.text)
            assert re.search(told, got.json()["error"]["message"]), (told, got.text)
        for query in ("limit=0", "limit=x", "order=up", "after=x"):
            made = http.post("/v1/responses", json={"model": "fake", "input": "x"}).json()
            got = http.get(f"/v1/responses/{made['id']}/input_items?{query}")
            assert got.status_code == 400
        assert http.get("/v1/responses/x").status_code == 404
        assert http.delete("/v1/responses/x").status_code == 404
        assert http.post("/v1/responses/x/cancel").status_code == 404
