"""Sampling fields that only one of the peers has, ``best_of``, ``suffix`` and deadlines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gristmill.options import Options
from gristmill.serve.breakers import bad_runs, breaker_runs
from gristmill.types import Request
from tests.serve.conftest import Running, Start, attach, fake_served, launch, stop
from tests.serve.fake_engine import EOS, FakeEngine, FakeTokenizer


@pytest.fixture(scope="module")
def one_server() -> Iterator[Any]:
    made = launch(FakeEngine(), Options(port=0))
    yield made
    stop(made)


@pytest.fixture
def running(one_server: Running) -> Any:
    one_server.engine.requests.clear()
    return one_server


def post(running: Running, route: str = "chat/completions", **fields: Any) -> httpx.Response:
    body: dict[str, Any] = {"prompt": "abc", **fields}
    if route == "chat/completions":
        body = {"messages": [{"role": "user", "content": "abc"}], **fields}
    with running.client() as client:
        return client.post(f"/v1/{route}", json=body)


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({}, "samplers", None),
        ({"samplers": ["top-k", "TEMP", "nucleus"]}, "samplers", ("top_k", "temperature", "top_p")),
        ({"samplers": "edskypmxta"}, "samplers",
         ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
          "temperature", "adaptive_p")),
        ({"samplers": []}, "samplers", ()),
        ({"top_n_sigma": -1}, "top_n_sigma", -1.0),
        ({"xtc_probability": 0.5}, "xtc_probability", 0.5),
        ({"xtc_threshold": 0.2}, "xtc_threshold", 0.2),
        ({"dynatemp_range": 0.5, "dynatemp_exponent": 2}, "dynatemp_exponent", 2.0),
        ({"mirostat": 2, "mirostat_tau": 3}, "mirostat", 2),
        ({"mirostat": 2, "mirostat_tau": 3}, "mirostat_tau", 3.0),
        ({"adaptive_target": 0.3}, "adaptive_target", 0.3),
        ({"min_keep": 3}, "min_keep", 3),
        ({"dry_multiplier": 0.8, "dry_base": 0.2}, "dry_base", 1.75),
        ({"dry_multiplier": 0.8}, "dry_breakers", ((10,), (58,), (34,), (42,))),
        ({"dry_multiplier": 0.8, "dry_sequence_breakers": ["ab"]}, "dry_breakers", ((97, 98),)),
        ({"dry_penalty_last_n": -1}, "dry_penalty_last_n", -1),
        ({"allowed_token_ids": [5, 3, 5]}, "allowed_token_ids", (3, 5)),
        ({"bad_words": ["ab", " ab", "</s>"]}, "bad_words", ((97, 98), (257,))),
        ({"post_sampling_probs": True}, "post_sampling", True),
        ({"n_probs": 50}, "logprobs", 50),
        ({"n_probs": 0}, "logprobs", None),
        ({"presence_penalty": 1}, "penalise_prompt", False),
        ({"presence_penalty": 1, "repeat_last_n": 64}, "penalise_prompt", True),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_tokens": 0}, "max_tokens", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_reaches_the_engine(
    running: Running, route: str, fields: dict[str, Any], attribute: str, value: Any
) -> None:
    got = post(running, route, **fields)
    assert got.status_code == 200, got.text
    assert getattr(running.engine.requests[-1].sampling, attribute) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"samplers": ["top_k", "greedy"]}, "samplers"),
        ({"samplers": ["infill"]}, "samplers"),
        ({"samplers": "kz"}, "samplers"),
        ({"samplers": {"a": 1}}, "samplers"),
        ({"samplers": [["top_k"]]}, "samplers"),
        ({"samplers": ["top_k"] * 33}, "samplers"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": "0.1"}, "xtc_threshold"),
        ({"dynatemp_range": -1}, "dynatemp_range"),
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat": True}, "mirostat"),
        ({"adaptive_decay": 1.0}, "adaptive_decay"),
        ({"min_keep": -1}, "min_keep"),
        ({"dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x"] * 129}, "dry_sequence_breakers"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [261]}, "allowed_token_ids"),
        ({"bad_words": ["a", ""]}, "bad_words"),
        ({"bad_words": [7]}, "bad_words"),
        ({"bad_words": ["a" * 2000]}, "bad_words"),
        ({"n_probs": 2000}, "n_probs"),
        ({"timeout": 0}, "timeout"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"use_beam_search": 3}, "use_beam_search"),
        ({"length_penalty": 11}, "length_penalty"),
    ],
)
def test_refused(running: Running, fields: dict[str, Any], param: str) -> None:
    got = post(running, **fields)
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["param"] == param, error
    assert param in error["message"] and len(error["message"]) < 300
    assert running.engine.requests == []


def scripted(request: Request, index: int) -> list[int]:
    """Answer 2 and then 0 are the likeliest: the fake engine's log-probabilities are of ids."""
    return [[98], [99, 99], [97], [100]][index % 4] + [EOS]


def test_best_of_tells_the_likeliest(serve: Start) -> None:
    running = serve(FakeEngine(script=scripted))
    plain = post(running, "completions", n=4, logprobs=0).json()["choices"]
    likely = sorted(plain, key=lambda choice: -mean(choice["logprobs"]["token_logprobs"]))
    got = post(running, "completions", n=2, best_of=4).json()
    assert [choice["text"] for choice in got["choices"]] == [c["text"] for c in likely[:2]]
    assert [choice["index"] for choice in got["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in got["choices"])
    assert got["usage"]["completion_tokens"] == 9  # of all four
    assert running.engine.requests[-1].n == 4
    two = post(running, "completions", prompt=["x", "y"], best_of=4).json()["choices"]
    assert [(choice["index"], choice["text"]) for choice in two] == [
        (0, likely[0]["text"]),
        (1, likely[0]["text"]),
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"best_of": 2, "stream": True}, "streamed"),
        ({"best_of": 1, "n": 2}, "less than"),
        ({"suffix": "x"}, "tokens for filling in"),
        ({"suffix": "x", "echo": True}, "echo"),
    ],
)
def test_completions_that_cannot_be(running: Running, fields: dict[str, Any], says: str) -> None:
    got = post(running, "completions", **fields)
    assert got.status_code == 400
    assert says in got.json()["error"]["message"]


class Marks:
    """Prompts for filling in, written with a few bytes."""

    def prompt(self, before: Any, after: Any, /) -> list[int]:
        return [1, *before, 2, *after, 3]

    def prompt_within(self, *arguments: Any) -> list[int]:
        raise AssertionError(arguments)


def test_suffix(serve: Start) -> None:
    running = serve(load=False)
    running.call(
        lambda: attach(running.state, replace(fake_served(running.engine), infill=Marks()))
    )
    wait(lambda: running.state.served is not None)
    got = post(running, "completions", prompt=["a", "b"], suffix="z</s>")
    assert got.status_code == 200, got.text
    want = [(1, *b"a", 2, *b"z</s>", 3), (1, *b"b", 2, *b"z</s>", 3)]
    assert [request.prompt for request in running.engine.requests] == want
    assert post(running, "completions", prompt=[5, 6], suffix="z").status_code == 400


def wait(until: Any) -> None:
    end = time.monotonic() + 5
    while not until() and time.monotonic() < end:
        time.sleep(0.01)


def test_deadlines(serve: Start) -> None:
    running = serve(FakeEngine(step=0.2), request_timeout=30.0)
    got = post(running, prompt="abcdefgh", route="completions", timeout=0.3)
    assert got.status_code == 504
    assert got.json()["error"]["type"] == "timeout_error"
    assert "0.3 s" in got.json()["error"]["message"]
    wait(lambda: running.engine.aborted)
    assert len(running.engine.aborted) == 1
    text = post(running, "completions", prompt="abcdefgh", timeout=0.5, stream=True).text
    assert '"text":"A"' in text and "timeout_error" in text and text.endswith("data: [DONE]\n\n")
    assert post(running, "completions", prompt="a", timeout=20).status_code == 200
    slow = serve(FakeEngine(step=0.2), request_timeout=0.3)
    assert post(slow, "completions", prompt="abcdefgh", timeout=20).status_code == 504


class Words:
    """A vocabulary of a few words, the longest taken first."""

    words = ("a", "b", " a", "ab", " ab", "b!", "!", "a!b", " ", "b!!")
    vocab_size = len(words)

    def piece(self, token: int) -> bytes:
        return self.words[token].encode()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids: list[int] = []
        while text:
            token = max(
                (i for i, word in enumerate(self.words) if text.startswith(word)),
                key=lambda i: len(self.words[i]),
            )
            ids.append(token)
            text = text[len(self.words[token]) :]
        return ids


def test_breakers_are_found_inside_tokens() -> None:
    words: Any = Words()
    holds = {("b!",), ("!",), ("a!b",), ("b!!",)}
    found = {tuple(Words.words[i] for i in run) for run in breaker_runs(words, ["!"])}
    assert found == holds
    # "b!" in one token, or begun by a token that ends with its "b"
    found = {tuple(Words.words[i] for i in run) for run in breaker_runs(words, ["b!"])}
    assert found == {("b!",), ("b!!",), ("b", "!"), ("ab", "!"), (" ab", "!"), ("a!b", "!")}
    assert breaker_runs(words, ["!", "b!"]) == tuple(
        dict.fromkeys(breaker_runs(words, ["!"]) + breaker_runs(words, ["b!"]))
    )


def test_bad_words_with_and_without_a_blank() -> None:
    words: Any = Words()
    spelt = [tuple(Words.words[i] for i in run) for run in bad_runs(words, ["ab", " a", "!"])]
    assert spelt == [("ab",), (" ab",), ("a",), (" a",), ("!",)]
    assert bad_runs(FakeTokenizer(), ["x"]) == ((120,),)
