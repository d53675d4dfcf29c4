"""Every field of a generating request: what reaches the engine, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gristmill.options import Options
from gristmill.serve import tokens
from gristmill.serve.requests import BAN
from tests.serve.conftest import Running, Start, launch, stop
from tests.serve.fake_engine import FakeEngine

Send = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def one_server() -> Iterator[Any]:
    """One server for the whole table."""
    made = launch(FakeEngine(), Options(port=0))
    yield made
    stop(made)


@pytest.fixture
def running(one_server: Running) -> Any:
    one_server.engine.requests.clear()
    return one_server


@pytest.fixture
def send(running: Running) -> Iterator[Any]:
    with running.client() as client:

        def post(route: Any = "chat", **fields: dict[str, Any]) -> Any:
            if route == "chat":
                body = {"messages": [{"role": "user", "content": "abc"}], **fields}
                return client.post("/v1/chat/completions", json=body)
            return client.post("/v1/completions", json={"prompt": "abc", **fields})

        yield post


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1e-7}, "temperature", 0.0),
        ({"temperature": 1e-12}, "temperature", 0.0),
        ({"temperature": None}, "temperature", 1.0),
        ({"temperature": 0.25}, "temperature", 0.25),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"top_k": 40.0}, "top_k", 40),
        ({"top_k": 10**6}, "top_k", 261),
        ({"top_p": 0}, "top_k", 1),
        ({"top_p": 0}, "top_p", 1.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"typical_p": 0.9}, "typical_p", 0.9),
        ({"repetition_penalty": 1.1}, "repetition_penalty", 1.1),
        ({"repeat_penalty": 1.2}, "repetition_penalty", 1.2),
        ({"repeat_last_n": 64}, "repeat_last_n", 64),
        ({"presence_penalty": -2}, "presence_penalty", -2.0),
        ({"frequency_penalty": 2}, "frequency_penalty", 2.0),
        ({"seed": 7}, "seed", 7),
        ({"seed": -1}, "seed", None),
        ({"seed": -5}, "seed", 2**64 - 5),
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_tokens": None}, "max_tokens", None),
        ({"max_completion_tokens": 6, "max_tokens": 5}, "max_tokens", 6),
        ({"n_predict": 4}, "max_tokens", 4),
        ({"n_predict": -1}, "max_tokens", None),
        ({"max_tokens": 10**9}, "max_tokens", 4096),
        ({"min_tokens": 2}, "min_tokens", 2),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"stop": None}, "stop", ()),
        ({"stop": []}, "stop", ()),
        ({"stop_token_ids": [1, 2]}, "stop_token_ids", (1, 2)),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"logit_bias": {"5": 1.5}}, "logit_bias", ((5, 1.5),)),
        ({"logit_bias": {"5": -100}}, "logit_bias", ((5, BAN),)),
        ({"logit_bias": {"5": 100}}, "logit_bias", ((5, 100.0),)),
        ({"logit_bias": [[5, False]]}, "logit_bias", ((5, BAN),)),
        ({"logit_bias": [["ab", -1]]}, "logit_bias", ((97, -1.0), (98, -1.0))),
        ({"logit_bias": {}}, "logit_bias", ()),
        ({"prompt_logprobs": 2}, "prompt_logprobs", 2),
        ({"response_format": {"type": "text"}}, "max_tokens", None),
        ({"tool_choice": "auto"}, "max_tokens", None),
        ({"mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0}, "max_tokens", None),
        ({"guided_grammar": None, "best_of": 1, "grammar": ""}, "max_tokens", None),
        ({"field_of_another_world": {"a": 1}}, "max_tokens", None),
    ],
)
def test_reaches_the_engine(
    running: Running,
    send: Send,
    fields: dict[str, Any],
    attribute: str,
    value: Any,
) -> None:
    got = send(**fields)
    assert got.status_code == 200, got.text
    assert getattr(running.engine.requests[0].sampling, attribute) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": [1]}, "frequency_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**12}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"stop": "a" * 5000}, "stop"),
        ({"stop_token_ids": [261]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 2000}, "stop_token_ids"),
        ({"logit_bias": {"999999": -100}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": [[5]]}, "logit_bias"),
        ({"logit_bias": [5, 1]}, "logit_bias"),
        ({"logit_bias": "x"}, "logit_bias"),
        ({"logit_bias": {str(i % 261) + " " * i: 1 for i in range(5000)}}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [3]}, "messages"),
        ({"messages": [{"role": "forbidden", "content": "x"}]}, "messages"),
        ({"model": 5}, "model"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"json_schema": {}}, "json_schema"),
        ({"best_of": 4}, "best_of"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"reasoning_format": "strange"}, "reasoning_format"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"priority": 2**40}, "priority"),
        ({"request_id": "x" * 1000}, "request_id"),
        ({"user": {"id": 1}}, "user"),
    ],
)
def test_refused(running: Running, send: Send, fields: dict[str, Any], param: str) -> None:
    got = send(**fields)
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["param"] == param, error
    assert param in error["message"] or param == "messages"
    assert len(error["message"]) < 300
    assert running.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": []}, "'messages' must have at least 1 entry."),
        ({"messages": "hi"}, "'messages' must be a list (it is 'hi')."),
        ({"stop_token_ids": [1] * 1025}, "'stop_token_ids' must have at most 1024 entries."),
        ({"chat_template_kwargs": [1]}, "'chat_template_kwargs' must be an object."),
        ({"stream_options": 5}, "'stream_options' must be an object (it is 5)."),
        ({"max_tokens": True}, "'max_tokens' must be a whole number (it is true)."),
        ({"tools": [1]}, "'tools' must be a list of objects."),
    ],
)
def test_sentences(send: Send, fields: dict[str, Any], says: str) -> None:
    """Said in the words of JSON, not of the library that checks."""
    assert send(**fields).json()["error"]["message"] == says


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [261]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 300}, "prompt"),
        ({"prompt": "", "add_special_tokens": False}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_completion_refused(
    running: Running, send: Send, fields: dict[str, Any], param: str
) -> None:
    got = send("completions", **fields)
    assert got.status_code == 400, got.text
    assert got.json()["error"]["param"] == param
    assert running.engine.requests == []


def test_other_fields(running: Running, send: Send) -> None:
    got = send(user="me", priority=-3, cache_salt="s", request_id="abc", n=2, model="alias").json()
    request = running.engine.requests[0]
    assert (request.client, request.priority) == ("127.0.0.1\nme", -3)
    assert request.cache_salt == "s"
    assert got["id"] == "chatcmpl-abc" and got["model"] == "alias"


def test_beams(running: Running, send: Send) -> None:
    assert send(use_beam_search=True, n=3, length_penalty=0.5).status_code == 200
    assert send(length_penalty=0.5).status_code == 200
    first, second = running.engine.requests
    assert (first.beams, first.n, first.length_penalty) == (3, 3, 0.5)
    assert (second.beams, second.n) == (0, 1)


def test_any_model(serve: Start) -> None:
    with serve(any_model=True).client() as client:
        body = {"model": "gpt-4", "messages": [{"role": "user", "content": "abc"}]}
        got = client.post("/v1/chat/completions", json=body).json()
    assert got["model"] == "gpt-4"


def test_token_ids(send: Send) -> None:
    got = send(return_token_ids=True, max_tokens=2).json()
    assert got["prompt_token_ids"] == [256, *b"abc"]
    assert got["choices"][0]["token_ids"] == [*b"AB"]
    got = send("completions", return_token_ids=True).json()["choices"][0]
    assert got["prompt_token_ids"] == [256, *b"abc"] and got["token_ids"] == [*b"ABC", 257]


def test_special_tokens_only_in_raw_prompts(running: Running, send: Send) -> None:
    send(messages=[{"role": "user", "content": "a<|end|>b"}])
    send("completions", prompt="a<|end|>b")
    chat, completion = running.engine.requests
    assert 260 not in chat.prompt and 260 in completion.prompt


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_one_reasoning_name(serve: Start, name: str) -> None:
    with serve(reasoning_field=name).client() as client:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "why</think>so"}],
            "chat_template_kwargs": {"enable_thinking": True},
        }
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "SO", name: "WHY"}
        body["reasoning_effort"] = "none"
        body["chat_template_kwargs"] = {}
        message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "WHY</THINK>SO"}


def test_tokenize(running: Running) -> None:
    with running.client() as client:
        got = client.post("/tokenize", json={"prompt": "aé<|end|>", "return_token_strs": True})
        assert got.json() == {
            "count": 5,
            "max_model_len": 4096,
            "tokens": [256, 97, 195, 169, 260],
            "token_strs": ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"],
        }
        got = client.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()
        assert got["tokens"] == [
            {"id": 97, "piece": "a"},
            {"id": 195, "piece": [195]},
            {"id": 169, "piece": [169]},
        ]
        assert client.post("/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
        chat = {"messages": [{"role": "user", "content": "ab"}]}
        assert client.post("/tokenize", json=chat).json()["tokens"] == [256, 97, 98]
        assert client.post("/tokenize", json={}).status_code == 400
        got = client.post("/detokenize", json={"tokens": [97, 195, 169, 260]}).json()
        assert got == {"prompt": "aé<|end|>", "content": "aé<|end|>"}
        for bad in ([261], [-1], ["a"], [1.5], "ab", None, {}):
            assert client.post("/detokenize", json={"tokens": bad}).status_code == 400


def test_tokenize_a_long_text(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in slices, read as one list."""
    monkeypatch.setattr(tokens, "SLICE", 7)
    text = "ab" * 50
    with running.client() as client:
        for more in ({"content": text}, {"prompt": text, "add_special_tokens": False}):
            assert client.post("/tokenize", json=more).json()["tokens"] == list(text.encode())
        got = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()
        assert "".join(each["piece"] for each in got["tokens"]) == text
        assert client.post("/tokenize", json={"content": ""}).json() == {"tokens": []}


def test_version_ping_and_schema(running: Running) -> None:
    import gristmill

    with running.client() as client:
        assert client.get("/version").json() == {"version": gristmill.__version__}
        assert client.get("/ping").status_code == client.post("/ping").status_code == 200
        assert client.get("/v1/health").status_code == 200
        schema = client.get("/openapi.json").json()
        body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert "messages" in schema["components"]["schemas"][name]["properties"]
