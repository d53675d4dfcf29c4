"""The routes for embeddings, scores and rankings, over a real engine and real clients."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

from gristmill.cli.loading import serve_as
from gristmill.engine.loader import load
from gristmill.files import open_model
from gristmill.files.describe import describe
from gristmill.options import Options
from tests.serve.conftest import Harness, start_server
from tests.tiny import tiny_llama

TEXTS = ["the mill", "the miller brings the grain", "a mill", "é🙂"]


def started(folder: Any, **more: Any) -> Iterator[Harness]:
    path = folder / "tiny.gguf"
    tiny_llama(path, encoding="f32")
    options = Options(model=str(path), port=0, kv_bytes=64 << 20, **more)
    loaded = load(open_model(path), options)
    served = serve_as(options, loaded, describe(loaded.checkpoint), path)
    harness = start_server(options, served)
    yield harness
    harness.stop()
    loaded.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    yield from started(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def unpooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    yield from started(tmp_path_factory.mktemp("model"), pooling="each")


@pytest.fixture
def client(server: Harness) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as made:
        yield made


def post(server: Harness, path: str, body: object) -> httpx.Response:
    with server.client() as http:
        return http.post(path, json=body)


def ok(server: Harness, path: str, body: object) -> Any:
    got = post(server, path, body)
    assert got.status_code == 200, got.text
    return got.json()


def raw(server: Harness, text: str) -> Any:
    """The embedding as the engine makes it."""
    (entry,) = ok(server, "/embedding", {"content": text, "embd_normalize": -1})
    return np.array(entry["embedding"][0])


# -------------------------------------------------------------------- OpenAI


def test_openai_client(client: Any, server: Harness) -> None:
    got = client.embeddings.create(model="tiny", input=TEXTS)  # the client asks for base64
    assert [each.index for each in got.data] == [0, 1, 2, 3]
    assert got.usage.prompt_tokens == got.usage.total_tokens > 4
    for each, text in zip(got.data, TEXTS, strict=True):
        want = raw(server, text)
        np.testing.assert_allclose(each.embedding, want / np.linalg.norm(want), rtol=1e-5)
    one = client.embeddings.create(model="tiny", input=TEXTS[1], encoding_format="float")
    np.testing.assert_array_equal(np.float32(one.data[0].embedding), got.data[1].embedding)


def test_all_forms_of_input(server: Harness) -> None:
    ids = ok(server, "/tokenize", {"prompt": TEXTS[0]})["tokens"]
    want = ok(server, "/v1/embeddings", {"input": TEXTS[0]})["data"][0]["embedding"]
    for form in (ids, [ids], [TEXTS[0]], [ids, TEXTS[1]]):
        got = ok(server, "/v1/embeddings", {"input": form})["data"]
        assert got[0]["embedding"] == want
    chat = ok(server, "/v1/embeddings", {"messages": [{"role": "user", "content": "mill"}]})
    rendered = "<|im_start|>user\nmill<|im_end|>\n"
    assert (
        chat["data"][0]["embedding"]
        == ok(server, "/v1/embeddings", {"input": rendered})["data"][0]["embedding"]
    )


def test_more_texts_than_run_at_once(client: Any) -> None:
    texts = [f"grain {number}" for number in range(700)]
    got = client.embeddings.create(model="tiny", input=texts)
    again = client.embeddings.create(model="tiny", input=texts[650:])
    assert [each.embedding for each in got.data[650:]] == [each.embedding for each in again.data]


def test_dimensions_and_norms(server: Harness) -> None:
    want = raw(server, TEXTS[1])
    body = {"input": TEXTS[1], "dimensions": 8}
    got = np.array(ok(server, "/v1/embeddings", body)["data"][0]["embedding"])
    np.testing.assert_allclose(got, want[:8] / np.linalg.norm(want[:8]), rtol=1e-5)
    packed = ok(server, "/v1/embeddings", {**body, "encoding_format": "base64"})
    unpacked = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(unpacked, np.float32(got))
    for norm, length in ((1, abs(want).sum()), (3, (abs(want) ** 3).sum() ** (1 / 3))):
        asked = {"content": TEXTS[1], "embd_normalize": norm}
        (entry,) = ok(server, "/embeddings", asked)
        np.testing.assert_allclose(entry["embedding"][0], want / length, rtol=1e-5)
    (entry,) = ok(server, "/embeddings", {"content": TEXTS[1], "embd_normalize": 0})
    assert max(map(abs, entry["embedding"][0])) == pytest.approx(32760)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [[10**9]]}, "input"),
        ({"input": ["a", {}]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 10**6}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "mill " * 3000}, None),
    ],
)
def test_faults(server: Harness, body: Any, param: str | None) -> None:
    got = post(server, "/v1/embeddings", body)
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert param is None or (error["param"] == param and f"'{param}" in error["message"])


def test_truncation(server: Harness) -> None:
    text = "the miller brings the grain to the mill " * 200
    ids = ok(server, "/tokenize", {"prompt": text})["tokens"]
    for side, cut in (("left", ids[-20:]), ("right", ids[:20])):
        body = {"input": text, "truncate_prompt_tokens": 20, "truncation_side": side}
        got = ok(server, "/v1/embeddings", body)
        assert got["data"] == ok(server, "/v1/embeddings", {"input": cut})["data"]
        assert got["usage"]["prompt_tokens"] == 20


# --------------------------------------------------------- llama-server, vLLM


def test_each_token(unpooled: Harness, server: Harness) -> None:
    (entry,) = ok(unpooled, "/embedding", {"content": TEXTS[1]})
    ids = ok(server, "/tokenize", {"prompt": TEXTS[1]})["tokens"]
    assert len(entry["embedding"]) == len(ids)
    np.testing.assert_allclose(entry["embedding"][-1], raw(server, TEXTS[1]), rtol=1e-5)
    got = post(unpooled, "/v1/embeddings", {"input": "a"})
    assert got.status_code == 400 and "--pooling none" in got.json()["error"]["message"]


def test_pooling(server: Harness) -> None:
    got = ok(server, "/pooling", {"input": TEXTS[:2]})
    assert got["usage"]["prompt_tokens"] > 0
    for each, text in zip(got["data"], TEXTS, strict=False):
        want = raw(server, text)
        np.testing.assert_allclose(each["data"], want / np.linalg.norm(want), rtol=1e-5)
    tokens = ok(server, "/pooling", {"input": TEXTS[1], "task": "token_embed"})["data"][0]["data"]
    want = raw(server, TEXTS[1])
    np.testing.assert_allclose(tokens[-1], want / np.linalg.norm(want), rtol=1e-5)
    assert len(tokens) > 1


def cosine(server: Harness, first: str, second: str) -> float:
    a, b = raw(server, first), raw(server, second)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_scores(server: Harness) -> None:
    for path in ("/score", "/v1/score"):
        got = ok(server, path, {"text_1": TEXTS[0], "text_2": TEXTS[1:]})
        scores = [each["score"] for each in got["data"]]
        want = [cosine(server, TEXTS[0], text) for text in TEXTS[1:]]
        np.testing.assert_allclose(scores, want, atol=1e-5)
    pairs = ok(server, "/score", {"text_1": TEXTS[:2], "text_2": TEXTS[2:]})["data"]
    want = [cosine(server, TEXTS[at], TEXTS[at + 2]) for at in range(2)]
    np.testing.assert_allclose([each["score"] for each in pairs], want, atol=1e-5)
    assert post(server, "/score", {"text_1": TEXTS[:2], "text_2": TEXTS}).status_code == 400
    assert post(server, "/score", {"text_1": "a"}).status_code == 400


def test_rankings(server: Harness) -> None:
    want = [cosine(server, TEXTS[0], text) for text in TEXTS[1:]]
    order = sorted(range(3), key=want.__getitem__, reverse=True)
    body = {"query": TEXTS[0], "documents": [TEXTS[1], {"text": TEXTS[2]}, TEXTS[3]]}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"):
        got = ok(server, path, body)
        assert [each["index"] for each in got["results"]] == order
        assert got["results"][0]["document"] == {"text": TEXTS[1 + order[0]]}
        np.testing.assert_allclose(
            [each["relevance_score"] for each in got["results"]],
            [want[at] for at in order],
            atol=1e-5,
        )
    assert len(ok(server, "/rerank", {**body, "top_n": 2})["results"]) == 2
    tei = ok(server, "/rerank", {"query": TEXTS[0], "texts": TEXTS[1:], "return_text": True})
    assert [each["index"] for each in tei] == order and tei[0]["text"] == TEXTS[1 + order[0]]
    for wrong in ({}, {"query": "a"}, {"query": "a", "documents": []}, {"documents": ["a"]}):
        assert post(server, "/rerank", wrong).status_code == 400


def test_one_route_for_all(server: Harness) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": TEXTS}),
        ("/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]}),
        ("/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]}),
    ):
        want, got = ok(server, path, body), ok(server, "/invocations", body)
        assert {**got, "id": 0, "created": 0} == {**want, "id": 0, "created": 0}


# -------------------------------------------------------------------- Ollama


@pytest.fixture
def lama(server: Harness) -> Iterator[Any]:
    client: Any = ollama.Client(server.url)
    yield client
    client._client.close()


def test_ollama_client(server: Harness, lama: Any) -> None:
    """One is of length one and for several texts, the other is as it comes and for one."""
    got = lama.embed("tiny", TEXTS)
    assert got.prompt_eval_count and got.total_duration
    for each, text in zip(got.embeddings, TEXTS, strict=True):
        want = raw(server, text)
        np.testing.assert_allclose(each, want / np.linalg.norm(want), rtol=1e-5)
    alone = lama.embed("tiny:latest", TEXTS[1], dimensions=8).embeddings
    assert len(alone) == 1 and len(alone[0]) == 8
    np.testing.assert_allclose(
        lama.embeddings("tiny", TEXTS[1]).embedding, raw(server, TEXTS[1]), rtol=1e-6
    )


def test_ollama_edges(server: Harness, lama: Any) -> None:
    for nothing in ("", []):
        assert lama.embed("tiny", nothing).embeddings == []
    assert ok(server, "/api/embed", {"model": "tiny"})["embeddings"] == []
    assert lama.embeddings("tiny", "").embedding == []
    long = "the miller brings the grain to the mill " * 400
    assert len(lama.embed("tiny", long).embeddings) == 1
    with pytest.raises(ollama.ResponseError, match="context"):
        lama.embed("tiny", long, truncate=False)
    with pytest.raises(ollama.ResponseError, match="not served here"):
        lama.embed("nobody", "a")
    assert post(server, "/api/embed", {"model": "tiny", "input": [1]}).status_code == 400
