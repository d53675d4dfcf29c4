from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.bench.client import Raw, events, parse_endpoint, read
from gristmill.errors import UsageError


def sse(*data: Any, end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(each)}{end}" for each in data).encode()


def chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def raw(*pieces: tuple[float, bytes]) -> Raw:
    return Raw(started=10.0, status=200, pieces=list(pieces), ended=99.0)


def test_times_are_of_text_not_of_roles() -> None:
    answer = read(
        raw(
            (10.1, sse(chat(role="assistant", content=""))),
            (10.5, sse(chat(content="a"))),
            (10.6, b": ping\n\n" + sse(chat(content=None))),
            (10.9, sse(chat(content="b"))),
            (11.5, sse(chat(content="c"))),
            (11.6, sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})),
            (11.7, b"data: [DONE]\n\n"),
        )
    )
    assert answer.error is None and answer.text == "abc"
    assert answer.ttft == pytest.approx(0.5)
    assert answer.tpot == pytest.approx(0.5)
    assert answer.gaps == pytest.approx([0.4, 0.6])
    assert answer.latency == pytest.approx(1.5)
    assert (answer.tokens, answer.prompt_tokens) == (3, 9)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_content_and_counted_once(name: str) -> None:
    both = {"reasoning": "x", "reasoning_content": "x"}
    answer = read(raw((11.0, sse(chat(**{name: "t"}))), (12.0, sse(chat(**both)))))
    assert answer.text == "tx" and answer.ttft == pytest.approx(1.0)


def test_tokens_are_counted_by_events_without_usage() -> None:
    answer = read(raw((11.0, sse({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}))))
    assert (answer.tokens, answer.prompt_tokens, answer.text) == (2, 0, "ab")


def test_tpot_counts_tokens_not_events() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 5}}
    answer = read(raw((11.0, sse(chat(content="ab"))), (12.0, sse(chat(content="cde"), usage))))
    assert answer.tpot == pytest.approx(0.25)


@given(st.lists(st.integers(1, 200), max_size=8), st.sampled_from(["\n\n", "\r\n\r\n"]))
def test_events_survive_any_cut(cuts: list[int], end: str) -> None:
    """However the body is cut into pieces, the events are the same."""
    body = b": hello\n\n" + sse(chat(content="é"), chat(content="\n"), {"x": [1]}, end=end)
    pieces: list[tuple[float, bytes]] = []
    for when, size in enumerate(cuts):
        pieces.append((float(when), body[:size]))
        body = body[size:]
    pieces.append((100.0, body))
    found = [json.loads(data) for _, data in events(pieces)]
    assert found == [chat(content="é"), chat(content="\n"), {"x": [1]}]


def test_an_event_has_the_time_of_its_last_byte() -> None:
    body = sse({"a": 1})
    assert list(events([(1.0, body[:5]), (2.0, body[5:])])) == [(2.0, '{"a": 1}')]


@pytest.mark.parametrize(
    ("pieces", "status", "says"),
    [
        ([(11.0, b'{"error": {"message": "too long"}}')], 400, "status 400: too long"),
        ([(11.0, b"<html>")], 502, "status 502: <html>"),
        ([(11.0, sse({"error": {"message": "dead"}}))], 200, "dead"),
        ([(11.0, b"data: {\n\n")], 200, "not JSON"),
        ([(11.0, b"data: [DONE]\n\n")], 200, "no text"),
        ([(11.0, sse([1], "x", {"choices": 3}, {"choices": [7]}))], 200, "no text"),
        ([], 200, "no text"),
    ],
)
def test_errors_are_told(pieces: list[tuple[float, bytes]], status: int, says: str) -> None:
    answer = read(Raw(10.0, status, pieces, 11.0))
    assert answer.error is not None and says in answer.error


@pytest.mark.parametrize(
    ("text", "label", "base"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("127.0.0.1:8000", "127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("mill=http://h:1/", "mill", "http://h:1/v1"),
        ("https://h/openai/v1/", "h", "https://h/openai/v1"),
        ("http://h/v1?a=b", "h", "http://h/v1?a=b"),
    ],
)
def test_endpoints(text: str, label: str, base: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.label, endpoint.base) == (label, base)


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h:port"])
def test_no_endpoint(text: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        parse_endpoint(text)
