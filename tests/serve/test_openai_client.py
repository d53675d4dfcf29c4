"""The ``openai`` package against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest

from tests.serve.conftest import Start


@pytest.fixture
def client(serve: Start) -> Iterator[Any]:
    running = serve()
    with openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as made:
        yield made


def detail(error: openai.APIStatusError) -> dict[str, Any]:
    """The error object of an answer."""
    assert isinstance(error.body, dict)
    return cast("dict[str, Any]", error.body)


def ask(client: Any, text: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": text}], **more
    )


def test_chat(client: Any) -> None:
    got = ask(client, "hello é 🙂")
    assert got.choices[0].message.content == "HELLO É 🙂"
    assert got.choices[0].message.role == "assistant"
    assert got.choices[0].finish_reason == "stop"
    assert got.usage.prompt_tokens == 1 + len("hello é 🙂".encode())
    assert got.usage.completion_tokens == len("hello é 🙂".encode()) + 1
    assert got.usage.prompt_tokens_details.cached_tokens == 2
    assert got.timings["cache_n"] == 2
    assert got.model == "fake"


def test_chat_stream_equals_whole(client: Any) -> None:
    text = "one two é 🙂 three"
    chunks = list(ask(client, text, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    *parts, closing, last = chunks
    joined = "".join(c.choices[0].delta.content or "" for c in parts)
    assert joined == ask(client, text).choices[0].message.content
    assert all(c.choices[0].finish_reason is None for c in parts)
    assert all("finish_reason" in c.choices[0].model_fields_set for c in parts)
    assert closing.choices[0].finish_reason == "stop"
    assert closing.choices[0].delta.content is None
    assert closing.timings["prompt_n"] > 0
    assert last.choices == [] and last.usage.completion_tokens == len(text.encode()) + 1
    assert len({c.id for c in chunks}) == 1


def test_length_and_n(client: Any) -> None:
    got = ask(client, "abcdef", max_tokens=3, n=3)
    assert [c.message.content for c in got.choices] == ["ABC"] * 3
    assert [c.index for c in got.choices] == [0, 1, 2]
    assert {c.finish_reason for c in got.choices} == {"length"}
    assert got.usage.completion_tokens == 9 and got.usage.prompt_tokens == 7
    stream = list(ask(client, "abcdef", max_completion_tokens=3, n=2, stream=True))
    for index in (0, 1):
        mine = [c.choices[0] for c in stream if c.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert "".join(c.delta.content or "" for c in mine) == "ABC"
        assert [c.finish_reason for c in mine][-2:] == [None, "length"]


def test_reasoning_both_names(client: Any) -> None:
    text = "why</think>because"
    more = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message = ask(client, text, **more).choices[0].message
    assert message.content == "BECAUSE"
    assert message.reasoning == message.reasoning_content == "WHY"
    stream = [c.choices[0].delta for c in ask(client, text, stream=True, **more)]
    assert "".join(getattr(d, "reasoning", "") for d in stream) == "WHY"
    assert "".join(d.content or "" for d in stream) == "BECAUSE"
    raw = ask(client, text, extra_body={**more["extra_body"], "reasoning_format": "none"}).choices[
        0
    ]
    assert raw.message.content == "WHY</THINK>BECAUSE"
    assert not hasattr(raw.message, "reasoning")


def test_logprobs(client: Any) -> None:
    got = ask(client, "é🙂", logprobs=True).choices[0].logprobs.content
    assert b"".join(bytes(each.bytes) for each in got) == "É🙂".encode()
    assert all(each.top_logprobs == [] for each in got)
    assert got[0].token == "bytes:\\xc3"
    got = ask(client, "ab", logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [len(each.top_logprobs) for each in got] == [3, 3]
    stream = ask(client, "é", logprobs=True, top_logprobs=0, stream=True)
    entries = [e for c in stream if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert b"".join(bytes(each.bytes) for each in entries) == "É".encode()
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "a", top_logprobs=3)
    assert detail(caught.value)["param"] == "top_logprobs"


def test_completions(client: Any) -> None:
    got = client.completions.create(model="fake", prompt="abc", echo=True, max_tokens=2)
    assert got.choices[0].text == "abcAB"
    got = client.completions.create(model="fake", prompt=["ab", "cd"], n=2)
    assert [c.text for c in got.choices] == ["AB", "AB", "CD", "CD"]
    assert got.usage.prompt_tokens == 6
    got = client.completions.create(model="fake", prompt=[97, 98], logprobs=1)
    assert got.choices[0].text == "AB"
    assert got.choices[0].logprobs.tokens == ["A", "B"]
    assert got.choices[0].logprobs.text_offset == [0, 1]
    got = client.completions.create(model="fake", prompt=[[97], [98, 99]])
    assert [c.text for c in got.choices] == ["A", "BC"]
    stream = list(client.completions.create(model="fake", prompt="xyz", stream=True, echo=True))
    assert "".join(c.choices[0].text for c in stream) == "xyzXYZ"
    assert [c.choices[0].finish_reason for c in stream][-2:] == [None, "stop"]


def test_echo_with_logprobs(client: Any) -> None:
    got = client.completions.create(
        model="fake", prompt="ab", echo=True, logprobs=1, max_tokens=1
    ).choices[0]
    assert got.logprobs.tokens == ["<s>", "a", "b", "A"]
    assert got.logprobs.token_logprobs[0] is None
    assert got.logprobs.text_offset == [0, 0, 1, 2]
    assert got.logprobs.top_logprobs[1] == {"a": -2.0}


def test_models(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["fake", "alias"]
    assert client.models.retrieve("alias").max_model_len == 4096
    with pytest.raises(openai.NotFoundError, match="'fake', 'alias'"):
        client.models.retrieve("other/name")
    with pytest.raises(openai.NotFoundError, match="'fake', 'alias'"):
        client.completions.create(model="gpt-4", prompt="a")


def test_context_error(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "a" * 5000)
    body = detail(caught.value)
    assert body["type"] == "exceed_context_size_error"
    assert (body["n_prompt_tokens"], body["n_ctx"]) == (5001, 4096)
    assert body["param"] == "input_tokens" and body["code"] == 400
    got = ask(client, "a" * 5000, extra_body={"truncate_prompt_tokens": 4})
    assert got.choices[0].message.content == "AAAA"
