from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gristmill.bench.prompts import MARK_WORDS, Fit, Length, Prompts, arrivals, read_prompts
from gristmill.errors import UsageError


def test_prompts_are_repeatable_and_all_different() -> None:
    length = Length(40, 40)
    made = [Prompts(0, "run").text(length, i, "s", r) for i in range(50) for r in range(4)]
    again = [Prompts(0, "run").text(length, i, "s", r) for i in range(50) for r in range(4)]
    assert made == again
    beginnings = {tuple(text.split()[:8]) for text in made}
    assert len(beginnings) == len(made)
    assert {len(text.split()) for text in made} == {40}


def test_another_run_or_seed_shares_no_beginning() -> None:
    length = Length(20, 20)
    first = Prompts(0, "a").text(length, 0, "s")
    for other in (Prompts(0, "b"), Prompts(1, "a")):
        assert other.text(length, 0, "s").split()[:4] != first.split()[:4]


def test_lengths_fill_the_range_and_do_not_depend_on_the_run() -> None:
    length = Length(46, 64)
    sizes = [len(Prompts(0, "a").text(length, i, "s").split()) for i in range(300)]
    assert (min(sizes), max(sizes)) == (46, 64)
    other = [len(Prompts(0, "b").text(length, i, "s", only_for=1).split()) for i in range(300)]
    assert sizes == other


def test_a_fit_gives_tokens_not_words() -> None:
    prompts = Prompts(0, "run", fit=Fit(base=7, each=2))
    assert len(prompts.text(Length(107, 107), 0, "s").split()) == 50


def test_a_shared_prefix_is_shared_and_the_rest_is_not() -> None:
    prompts = Prompts(0, "run", shared=30)
    a, b = (prompts.text(Length(50, 50), i, "s").split() for i in (0, 1))
    assert a[:30] == b[:30] and a[30:36] != b[30:36] and len(a) == 50
    assert Prompts(0, "other", shared=30).text(Length(50, 50), 0, "s").split()[:6] != a[:6]


def test_prompts_of_a_file_come_in_turn_behind_a_mark(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_text("one\n\ntwo words\n", encoding="utf-8")
    lines.write_text('"one"\n{"prompt": "two words", "n": 1}\n', encoding="utf-8")
    assert read_prompts(plain) == read_prompts(lines) == ["one", "two words"]
    prompts = Prompts(0, "run", texts=read_prompts(plain))
    made = [prompts.text(Length(0, 0), i, "s") for i in range(3)]
    assert [text.split("\n")[1] for text in made] == ["one", "two words", "one"]
    marks = {text.split("\n")[0] for text in made}
    assert len(marks) == 3 and {len(mark.split()) for mark in marks} == {MARK_WORDS}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"\n \n", "no prompt"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read as text"),
        ("a.jsonl", b"{}\n", "line 1"),
        ("a.jsonl", b'"x"\nfoo\n', "line 2"),
        ("a.jsonl", b'""\n', "line 1"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_prompts(tmp_path / name)


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    times = arrivals(5.0, 4000, "seed", 0)
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] / (len(times) - 1) == pytest.approx(0.2, rel=0.1)
    gaps = [b - a for a, b in pairwise(times)]
    # of an exponential distribution a share of 1 - 1/e lies below the mean
    assert sum(gap < 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.05)
    assert times == arrivals(5.0, 4000, "seed", 0) != arrivals(5.0, 4000, "seed", 1)
