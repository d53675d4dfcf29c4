"""Bodies of the Anthropic and Responses routes with anything anywhere: refused in a sentence, or
translated; nothing else is ever raised."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import RequestError
from gristmill.serve.anthropic.request import MessagesFields, parse_messages
from gristmill.serve.responses.request import parse_response
from gristmill.serve.responses.store import Store

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "is_error": False, "content": [
                    {"type": "text", "text": "r"}]},
                {"type": "document", "title": "t", "citations": {"enabled": False},
                 "source": {"type": "text", "data": "d"}},
                {"type": "search_result", "title": "t", "source": "s", "content": [
                    {"type": "text", "text": "r"}]},
            ],
        },
    ],
    "tools": [TOOL, {**TOOL, "name": "g", "input_examples": [{"a": 1}]}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 3, "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": None},
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}],
         "encrypted_content": "gristmill1:eA=="},
        {"type": "message", "id": "m", "role": "assistant", "content": [
            {"type": "output_text", "text": "a", "annotations": []},
            {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "id": "fc", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "o"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "f"}]},
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "medium"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"a": "b"},
    "max_output_tokens": 7,
    "stream_options": {"include_obfuscation": False},
}  # fmt: skip
ODD: Any = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 7, 1e300, 2**70, "", "x", [], {}, [None], [[]]]),
    st.sampled_from([{"type": None}, {"type": "text"}, {"type": "message"}, {"role": "user"}]),
    st.text(max_size=3),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something can be put."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        found.append((*path, key))
        if isinstance(value[key], dict | list):
            found += places(value[key], (*path, key))
    return found


def changed(body: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """The body with one to three places changed, or gone."""
    body = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(body)))
        inside: Any = body
        for key in path:
            inside = inside[key]
        if isinstance(inside, dict) and data.draw(st.booleans()):
            del inside[last]
            if not body:
                return body
        else:
            inside[last] = copy.deepcopy(data.draw(ODD))
    return body


def holds(parse: Callable[[], Any]) -> None:
    try:
        asked = parse()
    except RequestError as error:
        assert str(error).endswith((".", "?", "!")), str(error)
    else:
        json.dumps(asked.chat.messages, default=dict)


def test_the_bodies_themselves_are_taken() -> None:
    parse_messages(MESSAGES, MessagesFields)
    parse_response(RESPONSES, Store(100_000), "ab")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_messages(data: st.DataObject) -> None:
    body = changed(MESSAGES, data)
    holds(lambda: parse_messages(body, MessagesFields))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_responses(data: st.DataObject) -> None:
    body = changed(RESPONSES, data)
    holds(lambda: parse_response(body, Store(100_000), "ab"))
