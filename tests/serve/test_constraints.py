"""Constraints and thinking budgets over HTTP: the fields of three servers, one real engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from gristmill.cli.loading import serve_as
from gristmill.engine.loader import Loaded, load
from gristmill.errors import RequestError
from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.options import Options
from gristmill.serve import constraints
from gristmill.serve.constraints import Constrained
from gristmill.serve.protocol import Served
from tests.serve.conftest import Harness, start_server
from tests.tiny import tiny_llama

TEMPLATE = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{%- elif enable_thinking %}<think>\n{% endif -%}{% endif -%}"
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer", "maximum": 999}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@dataclass
class Real(Harness):
    """With the model behind it."""

    served: Served
    loaded: Loaded


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_llama(path, encoding="f32")
    options = Options(model=str(path), port=0, chat_template=TEMPLATE, kv_bytes=64 << 20, seed=3)
    checkpoint = open_model(path)
    loaded = load(checkpoint, options, backend="reference")
    served = serve_as(options, loaded, describe(checkpoint), path)
    harness = start_server(options, served)
    yield Real(**vars(harness), served=served, loaded=loaded)
    harness.stop()
    loaded.close()


def chat(real: Real, text: str = "mill", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 120, "temperature": 1}
    with real.client() as http:
        return http.post("/v1/chat/completions", json={**body, **fields})


def content(real: Real, **fields: Any) -> str:
    got = chat(real, **fields)
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["message"]["content"]


JSON = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}},
    {"response_format": {"type": "json_schema", "schema": SCHEMA}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_any_whitespace": True}},
    {"json_schema": SCHEMA},
    {"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"},
    {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " ?"},
]
OTHERS = [
    ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
    ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
    ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
    ({"guided_choice": ["one", "two"]}, "one|two"),
    ({"grammar": 'root ::= [ab]{2} "!"'}, "[ab]{2}!"),
    ({"grammar": '%llguidance {}\nstart: /[ab]{2}/ "!"'}, "[ab]{2}!"),
    ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "a|b"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "a|b"),
    (
        {"response_format": {"type": "structural_tag",
                             "format": {"type": "const_string", "value": "ok"}}},
        "ok",
    ),
    ({"structured_outputs": {"structural_tag": json.dumps(
        {"format": {"type": "tag", "begin": "<a>", "end": "</a>",
                    "content": {"type": "regex", "pattern": "[x/]{2}"}}})}},
     "<a>[x/]{2}</a>"),
]  # fmt: skip
NOTHING: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None, "grammar": "", "guided_choice": [], "guided_regex": ""},
    {"structured_outputs": {}, "guided_json_object": False, "json_schema": None},
    {"thinking_budget_tokens": -1},
]


@pytest.mark.parametrize("fields", JSON)
def test_schemas(real: Real, fields: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(content(real, **fields)), SCHEMA)


@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}},
                                    {"structured_outputs": {"json_object": True}},
                                    {"guided_json_object": True}])  # fmt: skip
def test_any_object(real: Real, fields: dict[str, Any]) -> None:
    for seed in range(20):
        got = chat(real, seed=seed, **fields).json()["choices"][0]
        assert got["message"]["content"].startswith("{")
        if got["finish_reason"] == "stop":
            assert isinstance(json.loads(got["message"]["content"]), dict)
            return
    pytest.fail("no answer came to its end")


@pytest.mark.parametrize(("fields", "pattern"), OTHERS)
def test_other_forms(real: Real, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, content(real, **fields))


@pytest.mark.parametrize("fields", NOTHING)
def test_what_asks_for_nothing(real: Real, fields: dict[str, Any]) -> None:
    plain = content(real, temperature=0, max_tokens=8)
    assert content(real, temperature=0, max_tokens=8, **fields) == plain


def test_completions_and_llama_servers_route(real: Real) -> None:
    with real.client() as http:
        body = {"prompt": ["a", "b"], "n": 2, "guided_choice": ["one", "two"], "max_tokens": 9}
        got = http.post("/v1/completions", json=body)
        assert got.status_code == 200, got.text
        assert all(choice["text"] in ("one", "two") for choice in got.json()["choices"])
        got = http.post(
            "/v1/completions", json={"prompt": "a", "grammar": 'root ::= "xyz"', "echo": True}
        )
        assert got.json()["choices"][0]["text"].endswith("xyz")


def test_streams_several_answers_and_logprobs(real: Real) -> None:
    with openai.OpenAI(base_url=real.url + "/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "mill"}],
            n=3,
            stream=True,
            logprobs=True,
            top_logprobs=2,
            temperature=1.2,
            max_tokens=120,
            response_format=JSON[0]["response_format"],  # type: ignore[arg-type]
        )
        texts = ["", "", ""]
        told = ["", "", ""]
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                for entry in (choice.logprobs.content or []) if choice.logprobs else []:
                    told[choice.index] += bytes(entry.bytes or []).decode()
        for text, each in zip(texts, told, strict=True):
            jsonschema.validate(json.loads(text), SCHEMA)
            assert each == text


def test_openais_parse(real: Real) -> None:
    class Point(pydantic.BaseModel):
        x: int
        kind: str | None
        tags: list[bool]

    with openai.OpenAI(base_url=real.url + "/v1", api_key="x", max_retries=0) as client:
        for seed in range(20):
            try:
                got = client.chat.completions.parse(
                    model="tiny", seed=seed, max_tokens=200, response_format=Point,
                    messages=[{"role": "user", "content": "mill"}],
                )  # fmt: skip
            except openai.LengthFinishReasonError:
                continue
            assert isinstance(got.choices[0].message.parsed, Point)
            return
    pytest.fail("no answer came to its end")


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"response_format": {"type": "json"}}, "response_format", "'json'"),
        ({"response_format": {}}, "response_format", "'type'"),
        ({"response_format": "json_object"}, "response_format", "object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", ""),
        ({"structured_outputs": []}, "structured_outputs", "object"),
        ({"structured_outputs": {"yaml": 1}}, "structured_outputs", "'yaml'"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs", "string"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs",
            "additionalProperties",
        ),
        ({"grammar": 'root ::= "a'}, "grammar", "line 1"),
        ({"grammar": 7}, "grammar", "string"),
        ({"guided_regex": "["}, "guided_regex", "unclosed"),
        ({"guided_choice": "abc"}, "guided_choice", "list"),
        ({"guided_json": {"not": {}}}, "guided_json", "not"),
        ({"guided_json": "{", "guided_whitespace_pattern": " "}, "guided_json", "JSON"),
        ({"guided_decoding_backend": "mine"}, "guided_decoding_backend", "mine"),
        ({"guided_something": 1}, "guided_something", "not supported"),
        ({"json_schema": {"type": "strin"}}, "json_schema", "strin"),
        ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "guided_regex", "Only one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "one"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "one"),
        ({"thinking_budget_tokens": -2}, "thinking_budget_tokens", "-2"),
        ({"thinking_token_budget": "much"}, "thinking_token_budget", "number"),
    ],
)
def test_refused(real: Real, fields: dict[str, Any], param: str, why: str) -> None:
    got = chat(real, **fields)
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["param"] == param, error
    assert why in error["message"] or why == "mine"
    assert "\n" not in error["message"]


def test_a_schema_nested_without_end_is_no_500(real: Real) -> None:
    deep: Any = {}
    for _ in range(150):
        deep = {"properties": {"a": deep}}
    got = chat(real, guided_json=deep)
    assert got.status_code == 400
    assert "nested" in got.json()["error"]["message"]


def test_one_that_takes_too_long_is_refused(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    slow: Future[object] = Future()
    monkeypatch.setattr(constraints, "DEADLINE", 0.2)
    object.__setattr__(real.served, "constrain", lambda _: slow)
    try:
        began = time.monotonic()
        got = chat(real, guided_regex="a")
        assert (got.status_code, got.json()["error"]["param"]) == (400, "guided_regex")
        assert "0.2 seconds" in got.json()["error"]["message"]
        assert time.monotonic() - began < 3
    finally:
        object.__setattr__(real.served, "constrain", real.loaded.grammars.compile)


# ------------------------------------------------------------------ thinking


def thought(real: Real, **fields: Any) -> tuple[str, str, Any]:
    got = chat(real, **fields)
    assert got.status_code == 200, got.text
    message = got.json()["choices"][0]["message"]
    return message.get("reasoning_content") or "", message["content"] or "", got.json()


THINK = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "thinking_token_budget"])
@pytest.mark.parametrize("budget", [0, 1, 8])
def test_budgets(real: Real, name: str, budget: int) -> None:
    """BC-39: no mark and no rest of the thought in the content."""
    reasoning, text, got = thought(real, max_tokens=30, **{name: budget}, **THINK)
    assert "</think>" not in reasoning + text
    assert text, "the answer has begun"
    if budget == 0:
        assert reasoning == ""
    assert got["usage"]["completion_tokens"] <= 30


def test_a_constraint_holds_for_the_answer_alone(real: Real) -> None:
    for fields in (THINK, {"chat_template_kwargs": {"enable_thinking": False}}, {}):
        reasoning, text, _ = thought(
            real, thinking_budget_tokens=5, guided_regex="[ab]{4}", max_tokens=60, **fields
        )
        assert re.fullmatch("[ab]{4}", text), (fields, reasoning, text)
        if fields == {"chat_template_kwargs": {"enable_thinking": False}}:
            assert reasoning == ""


def test_a_raw_prompt_has_no_thinking_budget(real: Real) -> None:
    with real.client() as http:
        got = http.post("/v1/completions", json={"prompt": "a", "thinking_budget_tokens": 3})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "thinking_budget_tokens"


# ------------------------------------------------------------ fields alone


def test_which_constraint() -> None:
    def kind(**fields: Any) -> str | None:
        found = Constrained.parse(fields).constraint()
        return found[0].kind if found else None

    assert kind(grammar='root ::= "start: x"') == "gbnf"
    assert kind(grammar='start ::= "x"') == "gbnf"
    assert kind(grammar='start: "x"') == "lark"
    assert kind(guided_json={}) == "json_schema"
    assert kind(guided_json=True) == "json_schema"
    assert kind(json_schema=None) is None
    with pytest.raises(RequestError, match="Only one"):
        kind(json_schema={}, grammar="x")


def test_spacing_goes_into_the_schema() -> None:
    found = Constrained.parse(
        {"structured_outputs": {"json": {"x-guidance": {"lenient": True}}, "regex": None,
                                "whitespace_pattern": " *"}}
    ).constraint()  # fmt: skip
    assert found is not None
    assert json.loads(found[0].text) == {"x-guidance": {"whitespace_pattern": " *"}}
