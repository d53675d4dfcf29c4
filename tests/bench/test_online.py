from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.bench.client import Answer, parse_endpoint
from gristmill.bench.online import CPU_ARTICLE, Scenario, Settings, Slo, run
from gristmill.bench.prompts import Length
from gristmill.bench.report import Measure, Report
from gristmill.errors import GristmillError
from tests.bench.fake_openai import Fake, serving


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as served:
        yield served


def measured(report: Report, key: str, side: str | None = None) -> list[Measure]:
    """The measures of a key, by scenario."""
    return [m for m in report.measures if m.key == key and side in (None, m.side)]


def value(report: Report, key: str, side: str | None = None) -> float:
    (found,) = measured(report, key, side)
    return found.spread.median


def quiet(*_: object) -> None:
    """Told progress."""


def bench(*sides: Fake, **settings: Any) -> Report:
    scenario = settings.pop("scenario", Scenario(Length(31, 31), 8, streams=2))
    given: dict[str, Any] = {"scenarios": (scenario,), "rounds": 3, "requests": 4} | settings
    endpoints = [parse_endpoint(f"side{i}={side.url}") for i, side in enumerate(sides)]
    return run(endpoints, Settings(**given), {"cpu": "a test"}, quiet)


def test_latencies_are_those_of_the_server(fake: Fake) -> None:
    report = bench(fake, slo=Slo(ttft=0.05))
    # The machine may be busy: never faster than the server, and seldom much slower.
    assert 100 <= value(report, "ttft_p50") < 200
    assert value(report, "ttft_p50") <= value(report, "ttft_p90") <= value(report, "ttft_p99")
    assert value(report, "tpot_p50") == pytest.approx(20, rel=0.5)
    assert value(report, "itl_p50") == pytest.approx(20, rel=0.5)
    assert 240 <= value(report, "e2e_p50") < 400
    assert value(report, "user_tps") == pytest.approx(50, rel=0.5)
    # two streams, an answer of 8 tokens every 0.24 s each
    assert 30 < value(report, "output_tps") <= 2 * 8 / 0.24
    assert value(report, "goodput") == value(report, "goodput_share") == 0
    assert len(measured(report, "ttft_p50")[0].values) == 3
    assert not [note for note in report.notes if "side0" in note and "memory" not in note]


def test_a_closed_loop_keeps_its_streams(fake: Fake) -> None:
    fake.first, fake.each = 0.05, 0.001
    bench(fake, scenario=Scenario(Length(31, 31), 4, streams=3), requests=9, rounds=1)
    assert fake.most_running == 3
    assert len(fake.bodies) == 2 + 2 * 9  # two to learn the tokens of a word, warm-up, round


def test_prompts_have_the_asked_length_and_no_common_beginning(fake: Fake) -> None:
    report = bench(fake)
    # the fake counts 2 tokens a word and 7 of a template: 12 words are 31 tokens
    assert value(report, "prompt_tokens") == 31
    beginnings = [" ".join(text.split()[:4]) for text in fake.prompts()]
    assert len(set(beginnings)) == len(beginnings)
    first = set(beginnings)
    bench(fake)
    again = [" ".join(text.split()[:4]) for text in fake.prompts()[len(beginnings) :]]
    assert not first & set(again)


def test_a_shared_prefix_is_in_every_prompt(fake: Fake) -> None:
    bench(fake, shared_prefix=20, rounds=1)
    measured_prompts = [text.split() for text in fake.prompts()[2:]]
    assert len({tuple(words[:10]) for words in measured_prompts}) == 1
    assert len({tuple(words[10:]) for words in measured_prompts}) == len(measured_prompts)


def test_what_is_sent(fake: Fake) -> None:
    bench(fake, rounds=1)
    body = fake.bodies[-1]
    assert body["model"] == "fake-1" and body["temperature"] == 0 and body["max_tokens"] == 8
    assert body["ignore_eos"] is True and body["stream_options"] == {"include_usage": True}


def test_without_ignore_eos_short_answers_are_no_surprise(fake: Fake) -> None:
    report = bench(fake, rounds=1, ignore_eos=False)
    assert "ignore_eos" not in fake.bodies[-1]
    assert not any("instead of exactly" in note for note in report.notes)


def test_two_servers_are_interleaved_and_their_texts_compared() -> None:
    order: list[str] = []
    with (
        serving(Fake(first=0.02, each=0.005)) as a,
        serving(Fake(first=0.06, each=0.005)) as b,
        serving(Fake(first=0.02, each=0.005, says="v{i} ")) as c,
    ):
        endpoints = [
            parse_endpoint(f"{name}={f.url}") for name, f in zip("abc", (a, b, c), strict=True)
        ]
        scenario = Scenario(Length(31, 31), 4, streams=1)
        settings = Settings((scenario,), rounds=4, requests=2, api="completions")
        report = run(endpoints, settings, {}, lambda what, *_: order.append(what[-1]))
    assert "".join(order).startswith("cbaabccbaabccba")
    assert a.prompts()[2:] == b.prompts() == c.prompts()
    assert value(report, "ttft_p50", "b") > value(report, "ttft_p50", "a") + 20
    row = report.sections()[0].rows
    ttft = next(each for each in row if each.metric == "first token, p50")
    gain = ttft.gain(1)
    assert gain is not None and gain > 1.3
    notes = " ".join(report.notes)
    assert "a and b returned the same text for 8 of 8" in notes
    assert "a and c returned the same text for 0 of 8" in notes


def test_one_server_named_twice_gets_no_prompt_twice(fake: Fake) -> None:
    fake.first = fake.each = 0.001
    report = bench(fake, fake, rounds=2)
    assert len(set(fake.prompts())) == len(fake.prompts())
    assert any("named twice" in note for note in report.notes)


def test_an_open_loop_keeps_its_rate_whatever_the_server_does(fake: Fake) -> None:
    fake.first, fake.each = 0.4, 0.001
    scenario = Scenario(Length(31, 31), 2, rate=40.0)
    report = bench(fake, scenario=scenario, requests=12, rounds=1)
    assert fake.most_running >= 6  # a closed loop would wait
    assert value(report, "ttft_p50") >= 400
    (rps,) = measured(report, "rps")
    assert rps.scenario.startswith("40 requests/s")


def test_what_is_odd_is_said() -> None:
    with serving(Fake(first=0.01, each=0.001, pair=True, fails=5)) as odd:
        report = bench(odd, rounds=2)
    notes = " ".join(report.notes)
    assert "several tokens in one event" in notes
    assert "requests failed (status 500: out of flour)" in notes
    assert value(report, "failed") > 0
    with serving(Fake(first=0.01, each=0.001, counts=False, pair=True)) as silent:
        report = bench(silent, rounds=1)
    notes = " ".join(report.notes)
    assert "does not count tokens" in notes and "4 to 4 tokens instead of exactly 8" in notes


def test_fast_tokens_keep_their_times_and_gathered_ones_are_told() -> None:
    with serving(Fake(first=0.02, each=0.004)) as fast:
        report = bench(fast, rounds=2)
    assert value(report, "tpot_p50") == pytest.approx(4, rel=0.6)
    with serving(Fake(first=0.02, each=0.004, gathers=True)) as gathered:
        report = bench(gathered, rounds=1)
    assert any("came together" in note for note in report.notes)


def test_memory_of_a_local_server_is_found_by_its_port(fake: Fake) -> None:
    report = bench(fake, rounds=1)  # the fake is this very process
    assert 10 < value(report, "pss") <= value(report, "peak_rss") + 1 < 10_000


def test_a_server_that_answers_nothing_is_an_error() -> None:
    with serving(Fake(fails=1)) as broken, pytest.raises(GristmillError, match="out of flour"):
        bench(broken)
    gone = Fake(url=broken.url)
    with pytest.raises(GristmillError, match="cannot be reached"):
        bench(gone)


def test_slo() -> None:
    answer = Answer(0.0, 2.0, times=(0.5, 1.0, 1.5), tokens=3)
    assert Slo().kept(answer)
    assert Slo(ttft=0.5, tpot=0.5, e2e=1.5).kept(answer)
    for tight in (Slo(ttft=0.4), Slo(tpot=0.4), Slo(e2e=1.4)):
        assert not tight.kept(answer)
    assert Slo(tpot=0.001).kept(Answer(0.0, 1.0, times=(0.5,), tokens=1))


def test_the_preset_is_the_articles() -> None:
    seen = [(s.streams, s.prompt.least, s.prompt.most, s.tokens) for s in CPU_ARTICLE]
    assert seen == [(1, 46, 64, 256), (4, 46, 64, 256), (8, 46, 64, 256), (1, 2034, 2034, 64)]


def test_percentiles_are_over_a_rounds_requests(fake: Fake) -> None:
    """p50 and p99 of one stream whose requests differ: by hand from what was seen."""
    fake.first, fake.each = 0.01, 0.001
    report = bench(fake, rounds=5)
    for low, high in (("e2e_p50", "e2e_p90"), ("e2e_p90", "e2e_p99")):
        pairs = zip(measured(report, low)[0].values, measured(report, high)[0].values, strict=True)
        assert all(a <= b for a, b in pairs)
    (e2e,) = measured(report, "e2e_p50")
    assert e2e.spread.median == statistics.median(e2e.values)
