"""The report as one page: plots, tables, card; nothing is fetched from anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from html import escape

from gristmill.bench.report import READING, Measure, Report
from gristmill.bench.svg import Point, Series, bars, lines

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #8884; text-align: left; }
td.n, th.n { text-align: right; }
"""


def to_html(report: Report) -> str:
    """A whole HTML document."""
    return "".join(_page(report))


def plots(report: Report) -> list[str]:
    """The SVG plots that the report has figures for."""

    def streams(m: Measure) -> int | None:
        return m.streams

    def prompt(m: Measure) -> int | None:
        return m.prompt if m.streams in (None, 1) else None

    found = [
        _over(report, "Throughput", "streams", ("output_tps",), streams),
        _over(report, "Speed of one user", "streams", ("user_tps",), streams),
        _over(report, "Time to first token", "prompt tokens", ("ttft", "ttft_p50"), prompt),
        _memory(report),
    ]
    return [plot for plot in found if plot]


def _over(
    report: Report,
    title: str,
    x_name: str,
    keys: tuple[str, ...],
    x_of: Callable[[Measure], int | None],
) -> str:
    series: dict[str, dict[float, Point]] = {}
    measures = [m for m in report.measures if m.key in keys]
    prompts = sorted({m.prompt for m in measures if m.prompt is not None})
    for m in measures:
        x, seen = x_of(m), m.spread
        if x is None or math.isnan(seen.median):
            continue
        many = x_name == "streams" and len(prompts) > 1
        name = f"{m.side}, prompts of {m.prompt}" if many else m.side
        series.setdefault(name, {})[x] = Point(x, seen.median, seen.least, seen.most)
    if not series:
        return ""
    sorted_series = [Series(n, tuple(p for _, p in sorted(s.items()))) for n, s in series.items()]
    return lines(title, x_name, measures[0].unit, sorted_series)


def _memory(report: Report) -> str:
    """The most that each side was seen to take, in whatever scenario."""
    for key in ("pss", "pss_all"):
        values: dict[str, Measure] = {}
        for m in report.measures:
            best = values.get(m.side)
            if m.key == key and (best is None or m.spread.median > best.spread.median):
                values[m.side] = m
        if values:
            points = [
                (side, Point(0, m.spread.median, m.spread.least, m.spread.most))
                for side, m in values.items()
            ]
            return bars("Memory (PSS)", "MB", points)
    return ""


def _page(report: Report) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{escape(report.title)}</h1><p>{escape(READING)}</p>"
    yield f'<div class="plots">{"".join(plots(report))}</div>'
    for section in report.sections():
        body = "".join(_row(line, "td") for line in section.lines())
        yield f"<h2>{escape(section.scenario)}</h2>"
        yield f"<table>{_row(section.headings(), 'th')}{body}</table>"
    if report.notes:
        notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
        yield f"<h2>Notes</h2><ul>{notes}</ul>"
    for name, facts in (("The machine", report.card), ("Settings", report.settings)):
        body = "".join(_row([key, str(value)], "td", 9) for key, value in facts.items())
        yield f"<h2>{name}</h2><table>{body}</table>"
    yield "</body></html>\n"


def _row(cells: list[str], tag: str, texts: int = 2) -> str:
    """A table's row; the first ``texts`` columns are not numbers."""
    starts = (f"<{tag}>" if i < texts else f'<{tag} class="n">' for i in range(len(cells)))
    made = (f"{start}{escape(each)}</{tag}>" for start, each in zip(starts, cells, strict=True))
    return f"<tr>{''.join(made)}</tr>"
