"""Perplexity and differences, against the float64 back end and plain sums."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill.cli.main import cli
from gristmill.convert.evaluate import Evaluated, evaluate, windows_of
from gristmill.convert.recipes import recipe_of
from gristmill.convert.write import write_model
from gristmill.errors import UsageError
from gristmill.files import open_model
from gristmill.models import build, understand
from tests.convert.folders import folder_of, tokenizer_of
from tests.models.runner import Runner, open_backend

TEXT = "Hello world, don't count 1234567 cats! " * 12
WINDOW = 96


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model in float32, and the same in Q4_0."""
    open_backend("cpu").close()
    folder = tmp_path_factory.mktemp("eval")
    source = folder_of(folder / "model", "llama3", tokenizer_of("bytes"))
    plain, small = folder / "f32.gguf", folder / "q8.gguf"
    write_model(open_model(source), plain, recipe_of("f32"))
    write_model(open_model(source), small, recipe_of("f16"))
    return plain, small


def losses(path: Path, windows: list[list[int]]) -> np.ndarray:
    """−ln p of the judged tokens, in float64."""
    checkpoint = understand(open_model(path))
    model = build(checkpoint, WINDOW)
    backend = open_backend("reference")
    found: list[float] = []
    for i, window in enumerate(windows):
        logits = Runner(backend, model, checkpoint, "f64", seed=i).step({0: window})[0]
        x = logits.astype(np.float64)
        x -= np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) + x.max(
            1, keepdims=True
        )
        found += [-float(x[at, window[at + 1]]) for at in range(WINDOW // 2, WINDOW - 1)]
    return np.array(found)


def test_perplexity_is_that_of_plain_sums(files: tuple[Path, Path]) -> None:
    model = Evaluated(open_model(files[0]), WINDOW, threads=2, kv_dtype="f32")
    windows = windows_of(model.tokenizer, TEXT, WINDOW, 2)
    result, difference = evaluate(model, windows)
    model.close()
    want = losses(files[0], windows)
    assert difference is None and result.windows == 2
    assert result.tokens == len(want) == 2 * (WINDOW - WINDOW // 2 - 1)
    assert result.perplexity == pytest.approx(math.exp(want.mean()), rel=1e-4)
    error = math.exp(want.mean()) * want.std() / math.sqrt(len(want) - 1)
    assert result.error == pytest.approx(error, rel=1e-3)


def test_against_itself_and_another(files: tuple[Path, Path]) -> None:
    plain = Evaluated(open_model(files[0]), WINDOW, threads=2, kv_dtype="f32")
    small = Evaluated(open_model(files[1]), WINDOW, threads=2, kv_dtype="f32")
    windows = windows_of(plain.tokenizer, TEXT, WINDOW, 1)
    _, same = evaluate(plain, windows, plain)
    assert same is not None and same.kl == 0.0 and same.same_top == 1.0
    result, other = evaluate(small, windows, plain)
    plain.close()
    small.close()
    assert other is not None and 0 < other.kl < 0.01
    assert other.reference.perplexity != result.perplexity


def test_command(files: tuple[Path, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    given = ["eval", str(files[1]), "--text", str(text), "-c", str(WINDOW), "-t", "2"]
    run = CliRunner().invoke(cli, [*given, "--against", str(files[0]), "--json"])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert facts["perplexity"] > 1 and facts["against"]["kl"] < 0.01
    run = CliRunner().invoke(cli, given)
    assert run.exit_code == 0 and "perplexity" in run.stdout
    text.write_text("too short", encoding="utf-8")
    run = CliRunner().invoke(cli, given)
    assert run.exit_code == 2 and "two windows" in run.stderr


def test_windows_begin_as_texts_do(files: tuple[Path, Path]) -> None:
    model = Evaluated(open_model(files[0]), 32, threads=1, kv_dtype="f32")
    windows = windows_of(model.tokenizer, TEXT, 32, None)
    ids = model.tokenizer.encode(TEXT, add_special=True, parse_special=False)
    assert len(windows) == len(ids) // 32
    assert [i for one in windows for i in one] == ids[: 32 * len(windows)]
    model.close()
    with pytest.raises(UsageError, match="window"):
        Evaluated(open_model(files[0]), 1 << 20, threads=1, kv_dtype="f32")
