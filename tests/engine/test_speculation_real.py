"""Guesses on models that compute: a tiny one under every kind of sampling, and real ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Constraint, Delta, Request, SamplingParams
from tests.tiny import tiny_llama

PHRASE = "the miller brings the grain to the mill and the mill turns the grain into flour. "


def answer(loaded: Loaded, text: str, params: SamplingParams, several: int = 1) -> list[Any]:
    events = [threading.Event() for _ in range(several)]
    deltas: list[list[Delta]] = [[] for _ in range(several)]
    prompt = tuple(loaded.tokenizer.encode(text, add_special=True, parse_special=True))

    def sink(delta: Delta, at: int) -> None:
        deltas[at].append(delta)
        if delta.finish is not None:
            events[at].set()

    for at in range(several):
        name = f"{id(events)}-{at}"
        loaded.engine.submit(Request(name, prompt, params), lambda d, at=at: sink(d, at))
    for event in events:
        assert event.wait(120)
    return deltas


def told(deltas: list[Delta]) -> Any:
    """All that a client sees of an answer but when."""
    last = deltas[-1]
    assert last.timings is not None
    return (
        [token for delta in deltas for token in delta.tokens],
        "".join(delta.text for delta in deltas),
        [logprob for delta in deltas for logprob in delta.logprobs],
        (last.finish, last.stopped_by, last.timings.generated_tokens),
    )


CASES: list[dict[str, Any]] = [
    {},
    {"ignore_eos": True, "min_tokens": 20},
    {"logprobs": 3},
    {"stop": ("mill", "zzz")},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.02, "seed": 6, "logprobs": 2},
    {"temperature": 1.0, "mirostat": 2, "seed": 7},
    {"dry_multiplier": 0.8, "seed": 8},
    {"constraint": Constraint("regex", "([a-z]{1,9}[ ,.]){1,40}")},
    {"constraint": Constraint("regex", "(the mill |grain, ){9}"), "temperature": 1.0, "seed": 9},
    {"max_tokens": 1},
    {"max_tokens": 2},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("drafts") / "t.gguf"
    tiny_llama(path, "q8_0")
    options = [Options(model=str(path), kv_bytes=32 << 20, draft_tokens=most) for most in (0, 16)]
    made = [load(open_model(path), each) for each in options]
    yield made
    for each in made:
        each.close()


def test_the_same_answers_on_a_tiny_model(pair: Any) -> None:
    """A random model falls into loops: its guesses come true often enough."""
    for case in CASES:
        fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 120, **case}
        params = SamplingParams(**fields)
        plain, guessed = (answer(each, PHRASE * 3, params, 3) for each in pair)
        assert list(map(told, guessed)) == list(map(told, plain)), case
    stats = pair[1].engine.stats()
    assert stats.draft_accepted > 0  # as many as pay on this machine now
    assert stats.drafts <= stats.draft_tokens
    assert pair[0].engine.stats().draft_tokens == 0


MODELS = os.environ.get("GRISTMILL_TEST_MODELS")
TEXTS = [
    f"Repeat this word for word: {PHRASE * 2}\n",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef add(a, b):\n",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "Once upon a time there was a miller who",
    "The capital of France is Paris. The capital of Italy is",
]


@pytest.mark.skipif(MODELS is None, reason="set GRISTMILL_TEST_MODELS to a folder of models")
@pytest.mark.parametrize("name", ["smollm2-135m-q4_1.gguf"])
def test_the_same_answers_on_a_real_model(name: str) -> None:
    same_answers(Path(MODELS or "") / name, TEXTS[:3], 24)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(MODELS is None, reason="set GRISTMILL_TEST_MODELS to a folder of models")
@pytest.mark.parametrize(
    "name", ["smollm2-135m-q4_1.gguf", "qwen2.5-coder-0.5b-q4_k_m.gguf", "gemma3-270m-q4_k_m.gguf"]
)
def test_the_same_answers_to_many_prompts(name: str) -> None:
    source = Path(__file__).read_text()
    parts = [source[at : at + 700] for at in range(0, 700 * 45, 700)]
    prompts = [*TEXTS, *(f"Print this again:\n{part or PHRASE}\n" for part in parts)]
    same_answers(Path(MODELS or "") / name, prompts, 60)


def same_answers(path: Path, prompts: list[str], tokens: int) -> None:
    options = [Options(model=str(path), draft_tokens=most, context=4096) for most in (0, 16)]
    engines = [load(open_model(path), each) for each in options]
    try:
        for text in prompts:
            for several in (1, 8):
                params = SamplingParams(temperature=0.0, max_tokens=tokens)
                plain, guessed = (answer(each, text, params, several) for each in engines)
                assert list(map(told, guessed)) == list(map(told, plain)), text
        assert engines[1].engine.stats().draft_accepted > 0
    finally:
        for each in engines:
            each.close()
