"""vLLM's own routes, and its forms of the shared ones, over the real engine on a tiny model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gristmill.serve.mixed import mixed
from tests.serve.conftest import Start
from tests.serve.fake_engine import FakeEngine, FakeTokenizer
from tests.serve.llama_harness import tiny_server
from tests.serve.test_real_engine import Real


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("vllm")
    with tiny_server(directory, dev_mode=True, tokenizer_info=True) as running:
        yield running


@pytest.fixture
def http(real: Real) -> Iterator[httpx.Client]:
    with real.client() as client:
        yield client


def test_tokenize_as_vllm_does(real: Real, http: httpx.Client) -> None:
    got = http.post("/tokenize", json={"model": "tiny", "prompt": "the mill"}).json()
    assert list(got) == ["count", "max_model_len", "tokens", "token_strs"]
    assert got["count"] == len(got["tokens"]) and got["max_model_len"] == real.served.context
    assert got["token_strs"] is None
    got = http.post("/tokenize", json={"prompt": "the mill", "return_token_strs": True}).json()
    assert "".join(got["token_strs"]).endswith("the mill")
    assert http.post("/detokenize", json={"tokens": got["tokens"]}).json()["prompt"]
    tool = {"type": "function", "function": {"name": "grind", "parameters": {}}}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    whole = http.post("/tokenize", json=chat).json()
    used = http.post("/v1/chat/completions", json={**chat, "max_tokens": 1}).json()["usage"]
    assert whole["count"] == used["prompt_tokens"]
    bare = http.post("/tokenize", json={**chat, "add_generation_prompt": False}).json()
    assert bare["tokens"] == whole["tokens"][: bare["count"]] and bare["count"] < whole["count"]
    kept = {**chat, "continue_final_message": True, "add_generation_prompt": False}
    kept["messages"] = [*chat["messages"], {"role": "assistant", "content": "so"}]
    assert http.post("/tokenize", json=kept).status_code == 200
    for bad in (
        {**chat, "continue_final_message": True},
        {**chat, "chat_template": "{{ messages }}"},
        {"prompt": 5},
        {"messages": "x"},
        {"prompt": "x", "model": "none"},
    ):
        assert http.post("/tokenize", json=bad).status_code in (400, 404), bad


def test_mixed_content() -> None:
    ids = mixed(["a", 260, "b"], FakeTokenizer(), add_special=True, parse_special=True, param="x")
    assert ids == [256, 97, 260, 98]
    ids = mixed([5, "b"], FakeTokenizer(), add_special=True, parse_special=True, param="x")
    assert ids == [5, 98]


def test_tokenize_mixed_content(http: httpx.Client) -> None:
    plain = http.post("/tokenize", json={"content": "the mill"}).json()["tokens"]
    got = http.post("/tokenize", json={"content": [7, "the mill", 8]}).json()["tokens"]
    assert got == [7, *plain, 8]
    for bad in (5, {"a": 1}, [None], [10**9], [-1], [True]):
        got = http.post("/tokenize", json={"content": bad})
        assert got.status_code == 400 and got.json()["error"]["param"] == "content"


def test_invocations(http: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0}
    got = http.post("/invocations", json=chat).json()
    assert got["object"] == "chat.completion"
    wanted = http.post("/v1/chat/completions", json=chat).json()["choices"]
    assert got["choices"] == wanted
    raw = {"prompt": "the mill", "max_tokens": 3, "temperature": 0}
    assert http.post("/invocations", json=raw).json()["object"] == "text_completion"
    page = http.post("/invocations", json={**raw, "stream": True}).text
    assert page.endswith("data: [DONE]\n\n")
    assert http.post("/invocations", json={"text": "x"}).status_code == 400
    assert http.post("/invocations", content=b"no").status_code == 400


def test_load(serve: Start) -> None:
    engine = FakeEngine()
    engine.hold.clear()
    running = serve(engine)
    with running.client() as http:
        assert http.get("/load").json() == {"server_load": 0}
        body = {"prompt": "abc", "stream": True}
        with ThreadPoolExecutor(1) as pool, running.client() as other:
            sent = pool.submit(other.post, "/v1/completions", json=body)
            while not engine.requests:
                time.sleep(0.01)
            assert http.get("/load").json() == {"server_load": 1}
            engine.hold.set()
            assert sent.result(10).status_code == 200


def test_the_prefix_cache_can_be_reset(http: httpx.Client) -> None:
    body = {"prompt": "what is kept of this is forgotten later " * 4, "max_tokens": 1}

    def cached() -> int:
        used = http.post("/v1/completions", json=body).json()["usage"]
        return int(used["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() >= 32
    assert http.post("/reset_prefix_cache").status_code == 200
    assert cached() == 0


def test_what_the_server_tells(real: Real, http: httpx.Client) -> None:
    told = http.get("/server_info").json()
    assert told["vllm_config"]["max_model_len"] == real.served.context
    told = http.get("/tokenizer_info").json()
    assert told["chat_template"] == real.state.options.chat_template
    assert "version" in http.get("/version").json()
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        got = http.post(path, json={"lora_name": "x", "lora_path": "y"})
        assert got.status_code == 400 and "LoRA" in got.json()["error"]["message"]


def test_development_is_off_by_default(tmp_path: Path) -> None:
    with tiny_server(tmp_path) as plain, plain.client() as http:
        assert http.post("/reset_prefix_cache").status_code == 404
        assert http.get("/server_info").status_code == 404
        assert http.get("/tokenizer_info").status_code == 404


def test_prompt_scores_and_ids(real: Real, http: httpx.Client) -> None:
    """vLLM's ``prompt_logprobs`` and ``return_token_ids`` on both routes."""
    body: dict[str, Any] = {"prompt": "the mill", "max_tokens": 2, "temperature": 0}
    more: dict[str, Any] = {"prompt_logprobs": 2, "return_token_ids": True}
    choice = http.post("/v1/completions", json={**body, **more}).json()["choices"][0]
    ids = http.post("/tokenize", json={"prompt": "the mill"}).json()["tokens"]
    assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 2
    scores = choice["prompt_logprobs"]
    assert scores[0] is None and len(scores) == len(ids)
    for token, entry in zip(ids[1:], scores[1:], strict=True):
        assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
        assert 2 <= len(entry) <= 3
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
    answer = http.post("/v1/chat/completions", json={**chat, **more}).json()
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"])
    chat |= {"stream": True, "return_token_ids": True}
    page = http.post("/v1/chat/completions", json=chat).text
    chunks = [json.loads(each[6:]) for each in page.split("\n\n") if each.startswith("data: {")]
    ids = [token for c in chunks for token in (c["choices"][0].get("token_ids") or [])]
    assert ids == answer["choices"][0]["token_ids"]
