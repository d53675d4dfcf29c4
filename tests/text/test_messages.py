"""Messages as clients send them."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import RequestError
from gristmill.text.messages import normalize
from gristmill.text.template import ChatTemplate

ITEMS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments|items %}[{{ k }}={{ v }}]{% endfor %}{% endfor %}{% endfor %}"  # noqa: E501
JSON = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"  # noqa: E501
TEXT = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}"  # noqa: E501


def history(arguments: Any, **assistant: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "tool_calls": [call], **assistant},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]


@pytest.mark.parametrize("assistant", [{"content": None}, {}])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ITEMS, "2+3?[a=2][b=3]5"),
        (JSON, '2+3?{"a": 2, "b": 3}5'),
        (TEXT, '2+3?<{"a":2,"b":3}>5'),
    ],
)
def test_replayed_tool_call(source: str, expected: str, assistant: dict[str, Any]) -> None:
    """BC-01, BC-03: null or no content; arguments as text, for all kinds of templates."""
    messages = history('{"a":2,"b":3}', **assistant)
    assert ChatTemplate(source).render(messages, None, False) == expected


@pytest.mark.parametrize("arguments", ["", None, " ", {}, "{}"])
def test_no_arguments(arguments: Any) -> None:
    assert ChatTemplate(JSON).render(history(arguments), None, False) == "2+3?{}5"


@pytest.mark.parametrize("arguments", ['"Beijing"', "[1]", '{"value": ', 3, [1], "[" * 100_000])
def test_malformed_arguments(arguments: Any) -> None:
    with pytest.raises(RequestError, match=r"messages\[1\]\.tool_calls\[0\]"):
        normalize(history(arguments))


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    assert normalize([{"role": "user", "content": parts}])[0]["content"] == "a\nb\nc"


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("hi", r"messages\[0\]"),
        ({"role": "user", "content": 3}, "content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "text only"),
        ({"role": "user", "content": [3]}, r"content\[0\]"),
        ({"role": "user", "content": [{"type": "text"}]}, "no text"),
        ({"role": "wizard", "content": "x"}, "wizard.*allowed are system"),
        ({"content": "x"}, "role"),
        ({"role": 3}, "role"),
        ({"role": "assistant", "tool_calls": 3}, "not a list"),
        ({"role": "assistant", "tool_calls": ["x"]}, r"tool_calls\[0\]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "names no function"),
        ({"role": "assistant", "tool_calls": [{"function": 5}]}, "not an object"),
    ],
)
def test_malformed_messages(message: Any, where: str) -> None:
    with pytest.raises(RequestError, match=where):
        normalize([message])


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_under_any_name(key: str) -> None:
    message = normalize([{"role": "assistant", "content": "x", key: "why"}])[0]
    assert message["reasoning_content"] == message["reasoning"] == "why"


def test_messages_are_copies() -> None:
    messages = history('{"a": 1}', content=None)
    normalize(messages)
    assert messages == history('{"a": 1}', content=None)
