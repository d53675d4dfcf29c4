from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gristmill.bench.asked import parse_lengths, parse_slo
from gristmill.bench.online import Slo
from gristmill.bench.prompts import Length
from gristmill.cli.main import cli
from gristmill.errors import UsageError
from tests.bench.fake_openai import Fake, serving
from tests.tiny import tiny_llama

FORMS = ("json", "csv", "md", "html")


def outputs(folder: Path) -> list[str]:
    return [word for form in FORMS for word in (f"--{form}", str(folder / f"out.{form}"))]


def check_outputs(folder: Path, kind: str) -> None:
    """All four are there, can be read, and hold the card."""
    found = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert found["kind"] == kind and found["measures"]
    rows = list(csv.DictReader((folder / "out.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(found["measures"])
    cpu, commit = str(found["card"]["cpu"]), str(found["card"]["commit"])
    assert rows[0]["card.cpu"] == cpu
    for name in ("out.md", "out.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert cpu in text and commit in text and str(found["card"]["isa"]) in text


def test_serve_writes_what_it_measured(tmp_path: Path) -> None:
    with serving(Fake(first=0.01, each=0.001)) as a, serving(Fake(first=0.01, each=0.001)) as b:
        words = f"bench serve a={a.url} b={b.url} --streams 1,2 --prompt 31 --tokens 4 --rounds 2"
        more = ["--slo", "ttft=1s", "--requests", "2", *outputs(tmp_path)]
        got = CliRunner().invoke(cli, [*words.split(), *more])
    assert got.exit_code == 0, got.output
    assert "goodput" in got.output and "same text for 4 of 4" in got.output
    assert "a ÷ b" in got.output and "read bandwidth" in got.output
    check_outputs(tmp_path, "serve")
    assert "<svg" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_serve_from_a_file_at_a_rate(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("tell me of mills\n", encoding="utf-8")
    with serving(Fake(first=0.01, each=0.001)) as fake:
        words = f"bench serve {fake.url} --rate 50 --tokens 2 --rounds 1 --requests 3 --prompts"
        got = CliRunner().invoke(cli, [*words.split(), str(tmp_path / "p.txt")])
    assert got.exit_code == 0, got.output
    assert "50 requests/s, prompts of a file, 2 tokens out" in got.output
    assert all(text.endswith("\ntell me of mills") for text in fake.prompts())
    assert len(set(fake.prompts())) == 6


def test_offline_writes_what_it_measured(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    tiny_llama(model, "q4_k", context=256)
    words = f"bench offline {model} --streams 2 --prompt 20 --tokens 3 --rounds 1 --starts 1 -t 1"
    peers = ["--peer", "llama.cpp", "--peer-python", str(tmp_path / "nothing")]
    got = CliRunner().invoke(cli, [*words.split(), *peers, *outputs(tmp_path)])
    assert got.exit_code == 0, got.output
    assert "prompt tokens" in got.output and "of the memory's bandwidth" in got.output
    assert "llama.cpp is not measured" in got.output and "make peers" in got.output
    check_outputs(tmp_path, "offline")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serve http://h --streams 0", "whole numbers from 1"),
        ("serve http://h --streams 1,x", "whole numbers"),
        ("serve http://h --streams 2,2", "twice"),
        ("serve http://h --rate 0", "numbers from"),
        ("serve http://h --rate nan", "numbers from"),
        ("serve http://h --rate 1 --streams 1", "not both"),
        ("serve http://h --preset cpu-article --tokens 3", "leave out --tokens"),
        ("serve http://h --preset cpu-article --prompt 3", "leave out --prompt"),
        ("serve http://h --prompt 9-3", "a range goes"),
        ("serve http://h --prompt x", "tokens or ranges"),
        ("serve http://h --shared-prefix 64", "leaves nothing"),
        ("serve http://h --slo ttft", "ttft, tpot and e2e"),
        ("serve http://h --pid 1 --pid 2", "2 times for 1"),
        ("serve ftp://h", "not a URL"),
        ("serve http://h --json /nowhere/at/all.json", "its folder must exist"),
        ("offline x.gguf --streams= --prompt=", "Nothing is measured"),
        ("offline no-such.gguf", "no file here"),
        ("offline", "Missing argument"),
    ],
)
def test_mistakes_are_one_sentence(words: str, says: str) -> None:
    got = CliRunner().invoke(cli, ["bench", *words.split()])
    assert got.exit_code in (1, 2), got.output
    assert says in got.output and "Traceback" not in got.output


def test_lengths_and_limits() -> None:
    assert parse_lengths("64, 46-64,2034") == [Length(64, 64), Length(46, 64), Length(2034, 2034)]
    assert parse_slo("ttft=500ms,tpot=0.05,e2e=2s") == Slo(0.5, 0.05, 2.0)
    for wrong in ("ttft=1,ttft=2", "itl=3", "ttft=-1", ""):
        with pytest.raises(UsageError):
            parse_slo(wrong)
