"""Property: however an engine cuts an answer into deltas, the stream says what the whole does."""

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
from gristmill.serve.bridge import Bridge
from gristmill.serve.chat_request import ChatFields
from gristmill.serve.completion_request import CompletionFields
from gristmill.serve.errors import Encoded, dumps
from gristmill.serve.metrics import Meter
from gristmill.serve.openai import chat, completions
from gristmill.serve.protocol import Prompt, Served
from gristmill.serve.requests import Generation
from gristmill.serve.run import Job
from gristmill.serve.state import State
from gristmill.text import reasoning
from gristmill.types import Delta, SamplingParams, Timings, TokenLogprob
from tests.serve.fake_engine import CONTEXT, FakeTokenizer

PIECES = ["<think>", "</think>", "<th", "ink>", "</", "a", " ", "\n", "é", "🙂", "why", ""]


@st.composite
def deltas(draw: Any, count: int) -> Any:
    """Deltas of ``count`` answers, in any order between answers."""
    left = {index: draw(st.lists(st.sampled_from(PIECES), max_size=8)) for index in range(count)}
    made = []
    while left:
        index = draw(st.sampled_from(sorted(left)))
        text = left[index].pop(0) if left[index] else ""
        last = not left[index]
        tokens = tuple(draw(st.lists(st.integers(0, 255), max_size=3)))
        scores = tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in tokens)
        finish = draw(st.sampled_from(["stop", "length"])) if last else None
        # The token that ends an answer by its id has no text and no score to be shown.
        stopped_by = "x" if finish == "stop" else None
        took = Timings(prompt_tokens=3, generated_tokens=0) if last else None
        made.append(Delta("r", index, tokens, text, scores, None, finish, stopped_by, took))
        if last:
            del left[index]
    return made


@pytest.fixture(scope="module")
def state() -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    yield State(Options(), Bridge(loop))
    loop.close()


def job(state: State, fields: Generation) -> Job:
    served = Served(("m",), cast(Any, None), FakeTokenizer(), None, CONTEXT, 0)
    return Job(state, served, fields, "m", "id", [Prompt((1, 2, 3))], SamplingParams(), 0)


def group(state: State, count: int, opened: bool | None) -> Any:
    def parser() -> Any:
        return None if opened is None else reasoning.parser("think", "<think>" * opened)

    answers = [Answer(index, 3, parser()) for index in range(count)]
    return Group(answers, {"r": 0}, Meter(state.metrics, "m"))


def run(shape: Any, state: State, count: int, opened: bool | None, given_deltas: Any) -> Any:
    streamed = group(state, count, opened)
    write = shape.writer(streamed)
    chunks = []
    for delta in given_deltas:
        answer, part = streamed.feed(delta)
        for chunk in write(answer, part, delta.finish is not None):
            chunks.append(json.loads(chunk) if isinstance(chunk, Encoded) else chunk)
    chunks.extend(shape.ending(streamed))
    plain = group(state, count, opened)
    for delta in given_deltas:
        plain.feed(delta)
    return chunks, shape.whole(plain)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    count=st.integers(1, 3),
    opened=st.sampled_from([None, False, True]),
    flags=st.fixed_dictionaries(
        {
            "logprobs": st.booleans(),
            "return_token_ids": st.booleans(),
            "timings_per_token": st.booleans(),
            "stream_options": st.sampled_from([None, {"include_usage": True}]),
        }
    ),
)
def test_chat_stream_says_what_the_whole_does(
    state: State, data: st.DataObject, count: int, opened: bool | None, flags: dict[str, Any]
) -> None:
    fields = ChatFields.parse({"messages": [{}], "n": count, **flags})
    shape = chat.ChatShape(job(state, fields), fields)
    chunks, whole = run(shape, state, count, opened, data.draw(deltas(count)))
    if flags["stream_options"]:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks)
    for index, plain in enumerate(whole["choices"]):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert all("role" not in c["delta"] for c in mine[1:])
        assert [c["finish_reason"] for c in mine] == [
            *[None] * (len(mine) - 1),
            plain["finish_reason"],
        ]
        assert mine[-1]["delta"] == {} and mine[-1]["stop_reason"] == plain["stop_reason"]
        for name in ("content", "reasoning", "reasoning_content"):
            joined = "".join(c["delta"].get(name, "") for c in mine)
            assert joined == plain["message"].get(name, "")
        scores = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert scores == (plain["logprobs"]["content"] if flags["logprobs"] else [])
        if flags["return_token_ids"]:
            assert [t for c in mine for t in c.get("token_ids", [])] == plain["token_ids"]


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    count=st.integers(1, 3),
    echo=st.booleans(),
    logprobs=st.sampled_from([None, 0, 2]),
)
def test_completion_stream_says_what_the_whole_does(
    state: State, data: st.DataObject, count: int, echo: bool, logprobs: int | None
) -> None:
    body = {"prompt": "x", "n": count, "echo": echo, "logprobs": logprobs}
    fields = CompletionFields.parse(body)
    shape = completions.CompletionShape(job(state, fields), fields)
    chunks, whole = run(shape, state, count, None, data.draw(deltas(count)))
    for index, plain in enumerate(whole["choices"]):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in mine) == plain["text"]
        assert mine[-1]["text"] == "" and mine[-1]["finish_reason"] == plain["finish_reason"]
        assert all(c["finish_reason"] is None for c in mine[:-1])
        if logprobs is not None:
            tokens = [t for c in mine if c["logprobs"] for t in c["logprobs"]["tokens"]]
            assert tokens == plain["logprobs"]["tokens"]
            places = [p for c in mine if c["logprobs"] for p in c["logprobs"]["text_offset"]]
            assert places == plain["logprobs"]["text_offset"]


def test_an_event_is_one_line_to_everybody() -> None:
    """Some clients cut lines where Unicode ends them: httpx's ``iter_lines`` among them."""
    value = {"text": "a\x85b\u2028c\u2029d é \\u2028"}
    data = dumps(value)
    assert len(data.decode().splitlines()) == 1
    assert json.loads(data) == value
