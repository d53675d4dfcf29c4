"""Anthropic's and OpenAI's clients against the real engine: what needs its caches and grammars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.serve import test_real_engine
from tests.serve.test_tools import ADD, NOW, Saying

real = test_real_engine.real
"""The fixture: a server with a real engine on a tiny random model."""

HELLO: Any = [{"role": "user", "content": "the mill grinds the grain " * 12}]
SHORT: Any = [{"role": "user", "content": "Turn."}]
PICK: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}


@pytest.fixture
def claude(real: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=real.url, api_key="x", max_retries=0) as made:
        yield made.messages


@pytest.fixture
def responses(real: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=real.url + "/v1", api_key="x", max_retries=0) as made:
        yield made.responses


def test_a_stream_counts_its_prompt_at_the_start(claude: Any) -> None:
    """BC-27."""
    wanted = {"model": "tiny", "max_tokens": 4, "messages": HELLO}
    model = {"model": claude._client.models.list().data[0].id}
    counted = claude.count_tokens(messages=HELLO, **model).input_tokens
    for again in (False, True):
        events = list(claude.create(**(wanted | model), stream=True))
        first, last = events[0].message.usage, events[-2].usage
        assert first.input_tokens + first.cache_read_input_tokens == counted
        assert (first.cache_read_input_tokens > 0) == again
        assert last.input_tokens == first.input_tokens
        assert last.output_tokens == 4 and events[-2].delta.stop_reason == "max_tokens"
    plain = claude.create(**(wanted | model)).usage
    assert plain.input_tokens == last.input_tokens
    assert plain.cache_read_input_tokens == last.cache_read_input_tokens


def test_a_message_in_a_schema(claude: Any) -> None:
    got = claude.create(
        model=claude._client.models.list().data[0].id,
        max_tokens=300,
        messages=SHORT,
        extra_body={"seed": 1},
        output_config={"format": {"type": "json_schema", "schema": PICK}},
    )
    assert json.loads(got.content[0].text)["side"] in ("left", "right")


def test_a_tool_that_must_be_called(claude: Any, responses: Any) -> None:
    name = claude._client.models.list().data[0].id
    tools = [{"name": "turn", "description": "Turns.", "input_schema": PICK}]
    more = {"model": name, "max_tokens": 300, "messages": SHORT, "tools": tools}
    for kind in ({"type": "any"}, {"type": "tool", "name": "turn"}):
        choice = kind | {"disable_parallel_tool_use": True}
        got = claude.create(**more, tool_choice=choice, extra_body={"seed": 1})
        assert [block.type for block in got.content] == ["tool_use"]
        assert got.content[0].input["side"] in ("left", "right")
        assert got.stop_reason == "tool_use"
    function = {"type": "function", "name": "turn", "parameters": PICK}
    answer = responses.create(
        model=name,
        input="Turn.",
        tools=[function],
        tool_choice={"type": "function", "name": "turn"},
        parallel_tool_calls=False,
        max_output_tokens=300,
        extra_body={"seed": 1, "thinking_budget_tokens": 0},
    )
    assert [item.type for item in answer.output] == ["function_call"]
    assert answer.output[0].name == "turn" and "side" in answer.output[0].arguments


def test_a_thought_of_so_many_tokens(claude: Any) -> None:
    """BC-39."""
    name = claude._client.models.list().data[0].id
    for budget in (0, 8):
        got = claude.create(
            model=name,
            max_tokens=60,
            # What else a random model says may be many tokens without a character.
            extra_body={"temperature": 0},
            messages=HELLO,
            thinking={"type": "enabled", "budget_tokens": budget},
        )
        assert got.usage.output_tokens_details.thinking_tokens <= budget + 12
        assert not any("think>" in b.text for b in got.content if b.type == "text")


class Turn(BaseModel):
    side: Literal["left", "right"]


def test_a_response_is_parsed(claude: Any, responses: Any) -> None:
    name = claude._client.models.list().data[0].id
    more = {"max_output_tokens": 300, "extra_body": {"seed": 1}}
    got = responses.parse(model=name, input="Turn.", text_format=Turn, **more)
    assert got.output_parsed.side in ("left", "right")


def test_a_second_turn_reuses_the_first(responses: Any, claude: Any) -> None:
    name = claude._client.models.list().data[0].id
    one = responses.create(model=name, input=HELLO[0]["content"] + "!", max_output_tokens=5)
    two = responses.create(
        model=name, input="Go on.", previous_response_id=one.id, max_output_tokens=5
    )
    assert two.usage.input_tokens_details.cached_tokens > 0
    assert two.usage.input_tokens > one.usage.input_tokens


def test_calls_in_a_models_own_markup(serve: Any) -> None:
    """The renderer's parsers, whole and streamed: no block of white space between calls."""
    saying = Saying(serve)
    saying.text = f"Let me see.\n{ADD}\n{NOW}\n"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools: Any = [{"name": name, "input_schema": schema} for name in ("add", "now")]
    wanted: Any = {"model": "fake", "max_tokens": 300, "messages": SHORT, "tools": tools}
    with anthropic.Anthropic(base_url=saying.running.url, api_key="x", max_retries=0) as made:
        plain = made.messages.create(**wanted)
        with made.messages.stream(**wanted) as stream:
            final = stream.get_final_message()
    answers: list[Any] = [plain, final]
    for got in answers:
        assert [block.type for block in got.content] == ["text", "tool_use", "tool_use"]
        assert got.content[0].text.strip() == "Let me see."
        assert [(b.name, b.input) for b in got.content[1:]] == [
            ("add", {"a": 1, "b": "zwölf"}),
            ("now", {}),
        ]
        assert got.stop_reason == "tool_use"
    functions: Any = [{"type": "function", "name": n, "parameters": schema} for n in ("add", "now")]
    with openai.OpenAI(base_url=saying.running.url + "/v1", api_key="x", max_retries=0) as made:
        answer = made.responses.create(model="fake", input="x", tools=functions)
    assert [item.type for item in answer.output] == ["message", "function_call", "function_call"]
