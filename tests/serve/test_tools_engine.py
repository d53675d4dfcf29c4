"""Forced calls through the real engine: a random model, which would say anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from gristmill.cli.loading import serve_as
from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.options import Options
from tests.serve.conftest import start_server
from tests.tiny import tiny_llama

TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}<tool_call>{% endif -%}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor -%}"
    "<|im_end|>\n{%- endfor -%}<|im_start|>assistant\n{% if think %}<think>\n{% endif -%}"
)
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}, "on": {"type": "boolean"}},
    "required": ["unit", "on"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("one", "two")
]
ASK: Any = [{"role": "user", "content": "mill"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_llama(path, encoding="f32", arch="llama")
    options = Options(model=str(path), port=0, chat_template=TEMPLATE, kv_bytes=64 << 20)
    checkpoint = open_model(path)
    loaded = load(checkpoint, options, backend="reference")
    harness = start_server(options, serve_as(options, loaded, describe(checkpoint), path))
    with openai.OpenAI(base_url=harness.url + "/v1", api_key="x", max_retries=0) as made:
        yield made
    harness.stop()
    loaded.close()


def ask(client: openai.OpenAI, **more: Any) -> Any:
    more = {"messages": ASK, "tools": TOOLS, "seed": 1, "max_tokens": 150, **more}
    return client.chat.completions.create(model="tiny", **more)


@pytest.mark.parametrize("think", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_forced_call_is_a_call(client: openai.OpenAI, think: bool, seed: int) -> None:
    more: Any = {"chat_template_kwargs": {"think": think}, "thinking_budget_tokens": 6}
    forced: Any = {"type": "function", "function": {"name": "two"}}
    for choice, names in (("required", ("one", "two")), (forced, ("two",))):
        asked: Any = {"tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
        whole = ask(client, extra_body=more, **asked).choices[0]
        assert whole.finish_reason == "tool_calls", whole
        assert whole.message.content is None
        (call,) = whole.message.tool_calls
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        assert arguments["unit"] in ("celsius", "fahrenheit") and isinstance(arguments["on"], bool)
        told = ""
        for chunk in ask(client, stream=True, extra_body=more, **asked):
            for delta in chunk.choices[0].delta.tool_calls or []:
                told += delta.function.arguments
        assert told == call.function.arguments


def test_a_schema_that_cannot_be_compiled_is_refused(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    tool: Any = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        ask(client, tools=[tool], tool_choice="required")
    assert ask(client, tools=[tool], max_tokens=3).choices[0].finish_reason == "length"


def test_a_tool_call_and_a_format_cannot_both_be_forced(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="forced tool call"):
        ask(client, tool_choice="required", response_format={"type": "json_object"})
