"""litellm and LangChain's OpenAI integration against the real engine on a tiny random model.

`pip install gristmill[clients]` brings both; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
WHY = "pip install 'gristmill[clients]' to run this"
litellm: Any = pytest.importorskip("litellm", reason=WHY, exc_type=ImportError)
chat_models: Any = pytest.importorskip("langchain_openai", reason=WHY, exc_type=ImportError)

from tests.serve.llama_harness import tiny_server  # noqa: E402
from tests.serve.test_real_engine import TEMPLATE  # noqa: E402

# Importing either library leaves files and sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")

ASK: Any = [{"role": "user", "content": "Turn."}]
SIDES: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"type": "string", "enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}
TURN: dict[str, Any] = {
    "type": "function",
    "function": {"name": "turn", "description": "Turn.", "parameters": SIDES},
}
NAMED = {"type": "function", "function": {"name": "turn"}}
PROVIDERS = ("openai", "hosted_vllm", "llamafile")


PLAIN = TEMPLATE[: TEMPLATE.index("{%- if enable_thinking")]
"""Without thoughts, which a random model never ends."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with tiny_server(tmp_path_factory.mktemp("clients"), 4096, chat_template=PLAIN) as running:
        yield running


def lite(real: Any, provider: str = "openai", **more: Any) -> Any:
    more = {"messages": ASK, "temperature": 0, "max_tokens": 12, **more}
    return litellm.completion(
        model=f"{provider}/tiny", api_base=real.url + "/v1", api_key="x", max_retries=0, **more
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_litellm_chats(real: Any, provider: str) -> None:
    whole = lite(real, provider)
    choice = whole.choices[0]
    assert choice.message.content and choice.finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    chunks = list(lite(real, provider, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage.completion_tokens == 12
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] in ("length", None)
    reasons = {c.choices[0].finish_reason for c in chunks if c.choices}
    assert reasons == {None, "length"}


@pytest.mark.parametrize("provider", PROVIDERS[:2])
def test_litellm_calls_a_tool(real: Any, provider: str) -> None:
    more: Any = {"tools": [TURN], "tool_choice": NAMED, "max_tokens": 600}
    more["parallel_tool_calls"] = False
    whole = lite(real, provider, **more).choices[0]
    (call,) = whole.message.tool_calls
    assert call.function.name == "turn"
    assert json.loads(call.function.arguments)["side"] in ("left", "right")
    chunks = list(lite(real, provider, stream=True, **more))
    joined = litellm.stream_chunk_builder(chunks, messages=ASK).choices[0]
    (again,) = joined.message.tool_calls
    assert again.function.arguments == call.function.arguments
    history: Any = [
        *ASK,
        whole.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "Turned."},
    ]
    assert lite(real, provider, messages=history, tools=[TURN]).usage.completion_tokens == 12


def test_litellm_asks_for_a_schema_and_scores(real: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "side", "schema": SIDES}}
    got = lite(real, response_format=wanted, max_tokens=600).choices[0].message.content
    assert json.loads(got)["side"] in ("left", "right")
    scores = lite(real, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(scores) == 12 and all(len(each.top_logprobs) == 3 for each in scores)
    body: Any = {"top_k": 1, "min_p": 0.5, "cache_prompt": False}
    got = lite(real, temperature=1, extra_body=body).choices[0].message.content
    assert got == lite(real).choices[0].message.content


def test_litellm_continues_raw_prompts(real: Any) -> None:
    got = litellm.text_completion(
        model="text-completion-openai/tiny",
        prompt="the mill",
        api_base=real.url + "/v1",
        api_key="x",
        temperature=0,
        max_tokens=5,
    )
    with real.client() as http:
        body = {"prompt": "the mill", "temperature": 0, "max_tokens": 5}
        wanted = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert got.choices[0].text == wanted


def test_litellm_is_told_what_is_wrong(real: Any) -> None:
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        lite(real, messages=[{"role": "user", "content": "x y " * 9000}])
    with pytest.raises(litellm.exceptions.NotFoundError):
        litellm.completion(
            model="openai/none", messages=ASK, api_base=real.url + "/v1", api_key="x", max_retries=0
        )


def chain(real: Any, **more: Any) -> Any:
    more = {"temperature": 0, "max_tokens": 12, "max_retries": 0, **more}
    return chat_models.ChatOpenAI(base_url=real.url + "/v1", api_key="x", model="tiny", **more)


def test_langchain_chats(real: Any) -> None:
    model = chain(real)
    whole = model.invoke("Turn.")
    assert whole.content and whole.usage_metadata["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == "length"
    chunks = list(model.stream("Turn.", stream_usage=True))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert joined.usage_metadata["output_tokens"] == 12
    assert [each.content for each in model.batch(["Turn.", "Turn."])] == [whole.content] * 2


def test_langchain_calls_a_tool(real: Any) -> None:
    model = chain(real, max_tokens=600).bind_tools(
        [TURN], tool_choice="turn", parallel_tool_calls=False
    )
    whole = model.invoke("Turn.")
    (call,) = whole.tool_calls
    assert call["name"] == "turn" and call["args"]["side"] in ("left", "right")
    chunks = list(model.stream("Turn."))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert [(each["name"], each["args"]) for each in joined.tool_calls] == [("turn", call["args"])]
    from langchain_core.messages import HumanMessage, ToolMessage

    history = [HumanMessage("Turn."), whole, ToolMessage("Turned.", tool_call_id=call["id"])]
    assert chain(real).bind_tools([TURN]).invoke(history).usage_metadata["output_tokens"] == 12


def test_langchain_asks_for_a_schema(real: Any) -> None:
    schema = {"title": "side", "description": "A side.", **SIDES}
    for method in ("json_schema", "function_calling"):
        model = chain(real, max_tokens=600).with_structured_output(schema, method=method)
        assert model.invoke("Turn.")["side"] in ("left", "right")
