"""Embeddings: the rows that the head would read, pooled; beside answers, in chunks, again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.engine.loader import Loaded, load
from gristmill.errors import ContextError
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Delta, Pooling, Request, SamplingParams
from tests.tiny import Tiny, tiny_llama

RNG = np.random.default_rng(7)


class Model:
    """A tiny model that answers; ``kv_tokens`` is all that its cache holds."""

    def __init__(self, path: Path, backend: str, kv_tokens: int) -> None:
        self.tiny: Tiny = tiny_llama(path, "f32", vocab=512)
        options = Options(model=str(path), step_tokens=32, max_running=4, context=kv_tokens)
        checkpoint = open_model(path)
        probe = load(checkpoint, options, backend=backend)
        width = sum(probe.plan.facts.block_bytes)
        probe.close()
        bound = width * (kv_tokens // 32 + 1)
        bounded = Options(
            model=str(path), step_tokens=32, max_running=4, context=kv_tokens, kv_bytes=bound
        )
        self.loaded: Loaded = load(open_model(path), bounded, backend=backend)
        self.count = 0

    def submit(self, prompt: tuple[int, ...], **more: Any) -> tuple[threading.Event, list[Delta]]:
        self.count += 1
        ended, deltas = threading.Event(), list[Delta]()

        def sink(delta: Delta) -> None:
            deltas.append(delta)
            if delta.finish is not None:
                ended.set()

        self.loaded.engine.submit(Request(f"r{self.count}", prompt, **more), sink)
        return ended, deltas

    def embed(self, prompt: tuple[int, ...], pooling: Pooling) -> Any:
        return rows(self.submit(prompt, pooling=pooling))


def rows(running: tuple[threading.Event, list[Delta]]) -> Any:
    ended, deltas = running
    assert ended.wait(60)
    last = deltas[-1]
    assert (last.finish, last.error, last.tokens) == ("stop", None, ())
    assert last.embedding is not None
    return np.frombuffer(last.embedding, np.float32)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("embed") / "t.gguf"
    made = Model(path, request.param, 192)
    yield made
    made.loaded.close()


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple(int(token) for token in RNG.integers(0, 500, length))


def test_rows_are_what_the_head_reads(model: Model) -> None:
    """The engine's own log-probabilities of a prompt follow from them."""
    prompt = prompt_of(70)
    found = model.embed(prompt, "each").reshape(70, -1)
    head = model.tiny.weights.get("output.weight", model.tiny.weights["token_embd.weight"])
    logits = found.astype(np.float64) @ head.astype(np.float64).T
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ended, deltas = model.submit(prompt, sampling=SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert ended.wait(60)
    scores = deltas[-1].prompt_logprobs
    assert scores is not None
    got = [each.logprob for each in scores[1:] if each is not None]
    want = [logs[at, token] for at, token in enumerate(prompt[1:])]
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_poolings(model: Model) -> None:
    for length in (1, 31, 32, 33, 100):
        prompt = prompt_of(length)
        each = model.embed(prompt, "each").reshape(length, -1)
        np.testing.assert_array_equal(model.embed(prompt, "last"), each[-1])
        np.testing.assert_array_equal(model.embed(prompt, "last"), each[-1])  # from the cache
        np.testing.assert_array_equal(model.embed(prompt, "first"), each[0])
        mean = each.mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(model.embed(prompt, "mean"), mean, rtol=1e-5, atol=1e-6)


def test_beside_answers_and_each_other(model: Model) -> None:
    """More than the cache has room for at once: some wait, some lose their blocks, and come
    back; each gets what it gets alone."""
    prompts = [prompt_of(length) for length in (90, 5, 64, 120, 33, 90)]
    alone = [model.embed(prompt, "mean") for prompt in prompts]
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    text = prompt_of(40)
    ended, deltas = model.submit(text, sampling=greedy)
    assert ended.wait(60)
    answer = [token for delta in deltas for token in delta.tokens]
    beside = [model.submit(text, sampling=greedy) for _ in range(2)]
    running = [model.submit(prompt, pooling="mean") for prompt in prompts]
    for got, want in zip(running, alone, strict=True):
        np.testing.assert_allclose(rows(got), want, rtol=1e-5, atol=1e-6)
    for ended, deltas in beside:
        assert ended.wait(60)
        assert [token for delta in deltas for token in delta.tokens] == answer


def test_bounds(model: Model) -> None:
    context = model.loaded.plan.context
    assert model.embed(prompt_of(context), "last").size  # no room for an answer is needed
    with pytest.raises(ContextError):
        model.submit(prompt_of(context + 1), pooling="last")


def test_abort(model: Model) -> None:
    ended, deltas = model.submit(prompt_of(150), pooling="each")
    model.loaded.engine.abort(f"r{model.count}")
    assert ended.wait(60)
    assert deltas[-1].finish in ("abort", "stop")
    assert (deltas[-1].embedding is None) == (deltas[-1].finish == "abort")
