from __future__ import annotations

import csv
import io
import json
import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from rich.console import Console

from gristmill.bench.html import plots, to_html
from gristmill.bench.report import Measure, Report, cell, number, to_csv, to_json, to_markdown
from gristmill.bench.svg import ticks
from gristmill.bench.table import show

HOSTILE = 'a|<b>"&[bold]'


def report() -> Report:
    made = Report("offline", "a test", ("mill", HOSTILE), {"cpu": "x<y", "cores": 2}, {"n": 1})
    for streams, ours, theirs in ((1, 10.0, 5.0), (4, 30.0, 10.0)):
        for side, value in (("mill", ours), (HOSTILE, theirs)):
            rounds = (value - 1, value, value + 2)
            name = f"decode {streams}"
            made.measures.append(
                Measure(name, "output_tps", "speed", "tokens/s", side, rounds, streams=streams)
            )
    made.measures += [
        Measure("prompt", "ttft", "first", "ms", "mill", (20.0, math.nan), "lower", prompt=64),
        Measure("prompt", "ttft", "first", "ms", HOSTILE, (50.0,), "lower", prompt=64),
        Measure("memory", "pss", "PSS", "MB", "mill", (100.0,), "lower"),
    ]
    made.note("careful")
    made.note("careful")
    return made


def test_sections_stand_sides_beside_each_other() -> None:
    sections = report().sections()
    assert [s.scenario for s in sections] == ["decode 1", "decode 4", "prompt", "memory"]
    assert sections[0].headings() == ["measure", "unit", "mill", HOSTILE, f"mill ÷ {HOSTILE}"]
    assert sections[0].lines() == [
        ["speed", "tokens/s", "10.0 (9.00–12.0)", "5.00 (4.00–7.00)", "2.00×"]
    ]
    # less is better: 20 ms are 2.5 times better than 50 ms
    assert sections[2].lines()[0][-1] == "2.50×"
    # a side without any figure has no column
    assert sections[3].sides == ("mill",) and sections[3].lines() == [["PSS", "MB", "100"]]


def test_numbers() -> None:
    assert [number(v) for v in (math.nan, 0.1234, 12.345, 123.45, 12345.6)] == [
        "–", "0.12", "12.3", "123", "12,346",
    ]  # fmt: skip
    assert cell(None) == "–"


def test_json_has_every_round() -> None:
    found = json.loads(to_json(report()))
    assert found["card"] == {"cpu": "x<y", "cores": 2} and found["sides"] == ["mill", HOSTILE]
    first = found["measures"][0]
    assert first["values"] == [9.0, 10.0, 12.0] and first["median"] == 10.0
    assert found["measures"][4]["values"] == [20.0, None]
    assert found["notes"] == ["careful"]


def test_csv_has_the_card_in_each_line() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(report()))))
    assert len(rows) == 7
    assert {row["card.cpu"] for row in rows} == {"x<y"}
    assert rows[1]["side"] == HOSTILE and float(rows[1]["median"]) == 5.0
    assert rows[2]["rounds"].split() == ["29", "30", "32"]


def test_markdown_tables_are_whole() -> None:
    text = to_markdown(report())
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 6
    for lines in tables:
        columns = {line.replace("\\|", "").count("|") for line in lines}
        assert len(columns) == 1, lines
    assert "| cpu | x<y |" in text and "- careful" in text


class Balanced(HTMLParser):
    """Fails on a tag that is closed wrongly."""

    VOID = ("meta", "circle", "line", "rect", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name in ("src", "href") for name, _ in attrs), "something is fetched"
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_whole_and_escaped() -> None:
    page = Balanced()
    page.feed(to_html(report()))
    assert not page.open
    assert page.seen.count("svg") == 3 and page.seen.count("table") == 6
    assert "script" not in page.seen and "b" not in page.seen
    assert HOSTILE in page.text and "x<y" in page.text


def test_plots_show_the_medians() -> None:
    first = ET.fromstring(plots(report())[0])
    space = "{http://www.w3.org/2000/svg}"
    lines = [line.attrib["points"].split() for line in first.iter(f"{space}polyline")]
    assert [len(points) for points in lines] == [2, 2]
    heights = [[float(p.split(",")[1]) for p in points] for points in lines]
    floor = 280 - 46
    # 10, 30 and 5, 10 of one scale: heights above the floor are in proportion
    above = [floor - y for row in heights for y in row]
    assert [h / above[0] for h in above] == pytest.approx([1, 3, 0.5, 1], abs=0.01)


def test_ticks_are_round_and_reach_the_top() -> None:
    assert ticks(32) == [0, 10, 20, 30, 40]
    assert ticks(0.9)[-1] >= 0.9 and ticks(0) == [0, 1] and ticks(math.nan) == [0, 1]
    for most in (0.0013, 1.0, 7.7, 99.9, 12345.0):
        assert most <= ticks(most)[-1] < 2 * most and 4 <= len(ticks(most)) <= 7


def test_the_terminal_shows_it_all() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    show(report(), console)
    text = console.export_text()
    assert "2.00×" in text and HOSTILE in text and "careful" in text and "x<y" in text
