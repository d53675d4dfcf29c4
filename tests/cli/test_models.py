"""``gristmill list``, ``show``, ``pull``, ``rm``."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gristmill.cli import models
from gristmill.errors import GristmillError, SourceError
from gristmill.files.store import Store
from tests.files.raw import BOOL, F32, STRING, U32, Raw, key, small, tensor, text

runner = CliRunner()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRISTMILL_HOME", str(tmp_path / "store"))
    return tmp_path / "store"


def put(home: Path, reference: str, data: bytes) -> Path:
    store = Store(home)
    folder = store.make(store.folder(reference))
    (folder / "m.gguf").write_bytes(data)
    return store.record(reference, reference, ["m.gguf"], "a test").path


def run(command: str, *arguments: str) -> Result:
    result = runner.invoke(getattr(models, f"{command}_command"), arguments)
    if isinstance(result.exception, GristmillError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_an_empty_store() -> None:
    assert "empty" in run("list").stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_list_and_remove(home: Path) -> None:
    path = put(home, "pypi:toy==1.0", small().build())
    put(home, "hf:a/b:c.gguf", small().build())
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["MODEL", "SIZE", "FETCHED", "FILE"]
    assert [line.split()[0] for line in lines[1:]] == ["hf:a/b:c.gguf", "pypi:toy==1.0"]
    assert lines[2].endswith(str(path))
    found = json.loads(run("list", "--json").stdout)
    assert found[1]["path"] == str(path)
    assert found[1]["bytes"] == path.stat().st_size
    assert "removed" in run("remove", "hf:a/b:c.gguf", "pypi:toy==1.0").stdout
    assert json.loads(run("list", "--json").stdout) == []
    with pytest.raises(SourceError, match="not in the model store"):
        run("remove", "pypi:toy==1.0")


def model() -> bytes:
    keys = [
        key("general.architecture", STRING, text("llama")),
        key("general.name", STRING, text("evil\x1b[2J\nname")),
        key("llama.context_length", U32, struct.pack("<I", 4096)),
        key("llama.block_count", BOOL, b"\x01"),  # not a count
        key("odd", F32, struct.pack("<f", float("nan"))),
        key("tokenizer.chat_template", STRING, text("{{ messages }}\nend")),
    ]
    entries = [tensor("a", (32, 4), 8, 0), tensor("b", (10,), 0, 160)]
    return Raw(keys=keys, tensors=entries, data=bytes(200)).build()


def test_show(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(model())
    page = run("show", str(path)).stdout
    assert "\x1b" not in page
    assert "evil\\x1b[2J\\nname" in page
    assert "parameters    138" in page
    assert "context       4,096 tokens" in page
    assert "176 B of weights" in page
    rows = [line.split() for line in page.splitlines() if line.startswith(("q8_0", "f32"))]
    assert rows == [
        ["q8_0", "1", "128", "136", "B", "77.3%"],
        ["f32", "1", "10", "40", "B", "22.7%"],
    ]
    assert "  {{ messages }}\n  end" in page


def test_show_as_json(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small().build())
    found = json.loads(run("show", "--json", str(path)).stdout, parse_constant=pytest.fail)
    assert found["metadata"]["words"] == {"length": 2, "first": ["a", "\udcff\udcc3"]}
    assert found["metadata"]["numbers"] == {"length": 3, "first": [-1, 2, 3]}
    assert found["metadata"]["nested"]["first"][0] == {"length": 2, "first": [True, False]}
    path.write_bytes(model())
    found = json.loads(run("show", "--json", str(path)).stdout, parse_constant=pytest.fail)
    assert (found["parameters"], found["weight_bytes"], found["layers"]) == (138, 176, None)
    assert found["chat_template"] == "{{ messages }}\nend"
    assert found["bits_per_weight"] == round(176 * 8 / 138, 3)


def test_show_fetches_nothing() -> None:
    with pytest.raises(SourceError, match="gristmill pull hf:a/b"):
        run("show", "hf:a/b")


def test_pull_of_a_stored_model_prints_its_path(home: Path) -> None:
    path = put(home, "pypi:toy==1.0", small().build())
    assert run("pull", "pypi:toy==1.0").stdout == f"{path}\n"


def test_progress_in_a_log() -> None:
    lines: list[str] = []
    now = 0.0
    report = models.progress_lines(lines.append, lambda: now)
    report(0, None, "waiting")
    for second in range(25):
        now = float(second)
        report(second * 1_000_000, 25_000_000, "m.gguf")
    assert lines == [
        "waiting",
        "m.gguf: 0 B of 25.0 MB",
        "m.gguf: 10.0 MB of 25.0 MB",
        "m.gguf: 20.0 MB of 25.0 MB",
    ]


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"),
     (999_960, "1.0 MB"), (3 * 10**15, "3000.0 TB")],
)  # fmt: skip
def test_sizes_for_people(count: int, says: str) -> None:
    assert models.human_bytes(count) == says
