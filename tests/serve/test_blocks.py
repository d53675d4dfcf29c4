"""Properties of answers in blocks: however they are cut into deltas, the stream says what the
whole does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.options import Options
from gristmill.serve.answers import Answer, Group
from gristmill.serve.anthropic.events import error_form
from gristmill.serve.anthropic.request import MessagesFields, parse_messages
from gristmill.serve.anthropic.shape import MessageShape
from gristmill.serve.anthropic.tools import call_input, completed
from gristmill.serve.bridge import Bridge
from gristmill.serve.metrics import Meter
from gristmill.serve.protocol import Prompt, Served
from gristmill.serve.responses.request import parse_response
from gristmill.serve.responses.shape import ResponseShape
from gristmill.serve.responses.store import Record, Store, stored
from gristmill.serve.run import Job
from gristmill.serve.state import State
from gristmill.types import Delta, Progress, SamplingParams, Timings, TokenLogprob
from tests.serve.blocks import BlockParser
from tests.serve.fake_engine import CONTEXT, FakeTokenizer

PIECES = [
    "<think>", "</think>", "<call>f ", "</call>", '{"a": [1, "x"]}', '{"b": "', "<th", "<", "a",
    " ", "\n", "é", "🙂", "",
]  # fmt: skip


@st.composite
def deltas(draw: Any) -> list[Delta]:
    texts = draw(st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map("".join), max_size=9))
    made = []
    if draw(st.booleans()):
        made.append(Delta("r", 0, (), "", progress=Progress(9, 4, 9, 0.1)))
    for i, text in enumerate([*texts, ""]):
        last = i == len(texts)
        tokens = tuple(draw(st.lists(st.integers(0, 255), max_size=3)))
        scores = tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in tokens)
        finish = draw(st.sampled_from(["stop", "length"])) if last else None
        by = draw(st.sampled_from(["x", "y"])) if finish == "stop" else None
        took = Timings(prompt_tokens=9, cached_tokens=4) if last else None
        made.append(Delta("r", 0, tokens, text, scores, None, finish, by, took))
    return made


@pytest.fixture(scope="module")
def state() -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    yield State(Options(), Bridge(loop))
    loop.close()


def job(state: State, fields: Any) -> Job:
    served = Served(("m",), cast(Any, None), FakeTokenizer(), None, CONTEXT, 0)
    return Job(state, served, fields, "m", "resp_ab", [Prompt((1,) * 9)], SamplingParams(), 0)


def run(make: Any, state: State, told: list[Delta]) -> tuple[list[Any], Any, Any]:
    """The events, the whole, and both groups' one answer."""
    meter = Meter(state.metrics, "m")
    groups = [Group([Answer(0, 9, BlockParser())], {"r": 0}, meter) for _ in "ab"]
    shape = make()
    write = shape.writer(groups[0])
    events = []
    for delta in told:
        answer, part = groups[0].feed(delta)
        events.extend(write(answer, part, delta.finish is not None))
        groups[1].feed(delta)
    events.extend(shape.ending(groups[0]))
    return events, make().whole(groups[1]), groups[1].answers[0]


def read_message(events: list[Any]) -> Any:
    """What a client of Anthropic's makes of a stream."""
    message = events[0]["message"]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    open_, joined = False, ""
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not open_ and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            joined, open_ = "", True
            continue
        block = message["content"][-1]
        assert open_ and event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_stop":
            open_ = False
            if block["type"] == "tool_use":
                block["input"] = call_input(joined)
            continue
        delta = event["delta"]
        if delta["type"] == "input_json_delta":
            joined += delta["partial_json"]
        elif delta["type"] == "signature_delta":
            block["signature"] = delta["signature"]
        else:
            name = delta["type"].removesuffix("_delta")
            assert delta[name]
            block[name] += delta[name]
    assert not open_
    closing = events[-2]
    assert closing["type"] == "message_delta"
    message |= closing["delta"]
    message["usage"] |= closing["usage"]
    return message


@settings(max_examples=150, deadline=None)
@given(told=deltas(), display=st.sampled_from(["summarized", "omitted"]))
def test_messages(state: State, told: list[Delta], display: str) -> None:
    asked = parse_messages(
        {
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 9,
            "stop_sequences": ["x"],
            "thinking": {"type": "adaptive", "display": display},
        },
        MessagesFields,
    )
    made = job(state, asked.chat)
    events, whole, answer = run(lambda: MessageShape(made, asked), state, told)
    first = dict(events[0]["message"]["usage"])
    assert first["input_tokens"] + first["cache_read_input_tokens"] == 9
    if told[0].progress:
        assert first["input_tokens"] == 5
    assert read_message(events) == whole
    said = "".join(b["text"] for b in whole["content"] if b["type"] == "text")
    assert said == "".join(answer.content)
    calls = [(b["id"], b["name"]) for b in whole["content"] if b["type"] == "tool_use"]
    assert calls == [(call.id, call.name) for call in answer.calls]
    if display == "summarized":
        thought = "".join(b["thinking"] for b in whole["content"] if b["type"] == "thinking")
        assert thought == "".join(answer.reasoning)


def read_response(events: list[Any]) -> Any:
    """What a client of OpenAI's makes of a stream, each part checked against its end."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    output: list[Any] = []
    text, scores, open_ = "", [], False
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(output) - (kind != "output_item.added")
        if kind == "output_item.added":
            assert not open_
            output.append(event["item"])
            text, scores, open_ = "", [], True
        elif kind == "output_item.done":
            assert event["item"]["id"] == output[-1]["id"]
            output[-1], open_ = event["item"], False
        elif kind.endswith(".delta"):
            text += event["delta"]
            scores += event.get("logprobs", [])
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == text
        elif kind.endswith(".done"):
            assert event.get("text", event.get("arguments")) == text
            assert event.get("logprobs", []) == scores
    assert not open_
    final = events[-1]["response"]
    assert final["output"] == output
    return final


@settings(max_examples=150, deadline=None)
@given(told=deltas(), summary=st.sampled_from([None, "auto"]), logprobs=st.booleans())
def test_responses(state: State, told: list[Delta], summary: str | None, logprobs: bool) -> None:
    include = ["reasoning.encrypted_content", *["message.output_text.logprobs"] * logprobs]
    body = {"input": "x", "reasoning": {"summary": summary}, "include": include}
    asked = parse_response(body, Store(1 << 20), "ab")
    made = job(state, asked.chat)
    kept: list[Any] = []
    events, whole, answer = run(lambda: ResponseShape(made, asked, kept.append), state, told)
    final = read_response(events)
    assert final | {"completed_at": None} == whole | {"completed_at": None}
    assert kept == [final, whole]
    assert whole["status"] == ("incomplete" if told[-1].finish == "length" else "completed")
    texts = [i["content"][0]["text"] for i in whole["output"] if i["type"] == "message"]
    assert "".join(texts) == "".join(answer.content)
    calls = [i["arguments"] for i in whole["output"] if i["type"] == "function_call"]
    assert calls == [call.arguments or "{}" for call in answer.calls]
    usage = whole["usage"]
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES)).map("".join), data=st.data())
def test_texts_do_not_depend_on_the_cuts(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = []
    for parts in (pieces, list(text)):
        answer = Answer(0, 1, BlockParser())
        for part in parts:
            answer.feed(Delta("r", 0, (1,), part))
        answer.feed(Delta("r", 0, (), "", finish="stop"))
        found.append(
            {
                kind: "".join(s.text for s in answer.segments.all if s.kind == kind)
                for kind in ("reasoning", "content", "call")
            }
        )
    assert found[0] == found[1]


@settings(max_examples=150, deadline=None)
@given(
    value=st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    ),
    data=st.data(),
)
def test_arguments_that_were_cut_off(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cut = data.draw(st.integers(0, len(text)))
    assert call_input(text) == value
    got = call_input(text[:cut])
    if cut:
        assert json.loads(completed(text[:cut])) == got
    assert set(got) <= set(value)
    # What was whole is kept: all but the last key that is there.
    for key in list(got)[:-1]:
        assert got[key] == value[key]


def test_arguments_that_are_none() -> None:
    for text in ("", "7", "[1]", "nonsense", '{"a": 1e999}', "{" * 5000, '{"a": NaN}'):
        json.dumps(call_input(text), allow_nan=False)


def record(number: int, size: int, previous: str | None = None) -> Record:
    made = stored(f"resp_{number}", previous, [{"type": "message", "id": f"msg_{number}_i0"}])
    made.response = json.dumps({"output": [], "pad": "a" * size}).encode()
    return made


def test_the_store_is_bounded() -> None:
    store = Store(40_000, most=8)
    for i in range(100):
        store.put(record(i, 8_000))
        assert store.bytes <= 40_000 and len(store) <= 8
    assert len(store) == 4
    store.get("resp_96")
    store.put(record(100, 8_000))
    assert store.get("resp_96") and len(store) == 4
    for i in range(200, 220):
        store.put(record(i, 0))
    assert len(store) == 8
    store.put(record(300, 50_000))
    assert store.bytes <= 40_000
    for each in list(store._records):  # pyright: ignore[reportPrivateUsage]
        assert store.drop(each)
    assert store.bytes == 0


def test_a_conversation_is_kept_together() -> None:
    store = Store(1 << 20, most=4)
    store.put(record(0, 9))
    store.put(record(1, 9, "resp_0"))
    store.put(record(7, 9))
    store.put(record(8, 9))
    assert [item["id"] for item in store.conversation("resp_1")] == ["msg_0_i0", "msg_1_i0"]
    store.put(record(9, 9))
    store.put(record(10, 9))
    assert len(store.conversation("resp_1")) == 2


def test_the_form_of_errors() -> None:
    got = error_form({"code": 503, "message": "Busy.", "type": "unavailable_error"})
    assert got["error"] == {"type": "overloaded_error", "message": "Busy."}
    assert error_form({"code": 418, "message": "x"})["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert error_form({"code": 500, "message": "x"})["error"]["type"] == "api_error"  # type: ignore[index]
