"""What both benches report: measures of several sides over rounds, and the machine's card."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gristmill.bench.card import Card
from gristmill.bench.stats import Spread, spread

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of one side: its value in every round.

    ``key`` is its name for programs, ``metric`` for people. ``streams`` and ``prompt``
    (tokens) say where it belongs on an axis, where that makes sense.
    """

    scenario: str
    key: str
    metric: str
    unit: str
    side: str
    values: tuple[float, ...]
    better: Better = "higher"
    streams: int | None = None
    prompt: int | None = None

    @property
    def spread(self) -> Spread:
        """Median, least and most of the rounds."""
        return spread(self.values)


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of all sides beside each other, in the order of ``Section.sides``."""

    metric: str
    unit: str
    cells: tuple[Measure | None, ...]

    def gain(self, other: int) -> float | None:
        """How many times better the first side is than side ``other``, by medians."""
        first, second = self.cells[0], self.cells[other]
        if first is None or second is None or first.better == "neither":
            return None
        a, b = first.spread.median, second.spread.median
        if first.better == "lower":
            a, b = b, a
        if math.isnan(a) or math.isnan(b) or b <= 0:
            return None
        return a / b


@dataclass(frozen=True, slots=True)
class Section:
    """A scenario's rows, with the sides that have any figure in it."""

    scenario: str
    sides: tuple[str, ...]
    rows: tuple[Row, ...]

    def headings(self) -> list[str]:
        """Of the columns of its table."""
        against = [f"{self.sides[0]} ÷ {side}" for side in self.sides[1:]]
        return ["measure", "unit", *self.sides, *against]

    def lines(self) -> list[list[str]]:
        """Its table, as text: ``1.83×`` in the last columns, for each side after the first."""
        found: list[list[str]] = []
        for row in self.rows:
            gains = [row.gain(i) for i in range(1, len(self.sides))]
            better = ["" if gain is None else f"{gain:.2f}×" for gain in gains]
            found.append([row.metric, row.unit, *map(cell, row.cells), *better])
        return found


@dataclass
class Report:
    """All of it. ``settings`` is what was asked for, ``notes`` what the reader must know."""

    kind: Literal["serve", "offline"]
    title: str
    sides: tuple[str, ...]
    card: Card
    settings: dict[str, Any]
    measures: list[Measure] = field(default_factory=list[Measure])
    notes: list[str] = field(default_factory=list[str])

    def note(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def sections(self) -> list[Section]:
        """The measures by scenario, one row a figure, in the order in which they were added."""
        found: list[Section] = []
        for scenario in dict.fromkeys(measure.scenario for measure in self.measures):
            here = [measure for measure in self.measures if measure.scenario == scenario]
            sides = tuple(s for s in self.sides if any(m.side == s for m in here))
            rows: list[Row] = []
            for key in dict.fromkeys(measure.key for measure in here):
                cells = {measure.side: measure for measure in here if measure.key == key}
                first = next(iter(cells.values()))
                rows.append(Row(first.metric, first.unit, tuple(map(cells.get, sides))))
            found.append(Section(scenario, sides, tuple(rows)))
        return found


def number(value: float) -> str:
    """Three digits that matter, no more."""
    if math.isnan(value):
        return "–"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def cell(measure: Measure | None) -> str:
    """The median, and from where to where the rounds went."""
    if measure is None:
        return "–"
    seen = measure.spread
    middle = number(seen.median)
    if math.isnan(seen.median) or len(measure.values) < 2 or seen.least == seen.most:
        return middle
    return f"{middle} ({number(seen.least)}–{number(seen.most)})"


READING = (
    "Medians of the rounds (least–most). ÷ says how many times better the first is: "
    "more where more is better, less where less is."
)


def to_json(report: Report) -> str:
    """Everything, every round; NaN is null."""
    measures = [
        {name: _plain(value) for name, value in asdict(measure).items()}
        | {name: _plain(value) for name, value in asdict(measure.spread).items()}
        for measure in report.measures
    ]
    whole = {
        "kind": report.kind,
        "title": report.title,
        "sides": list(report.sides),
        "card": report.card,
        "settings": report.settings,
        "notes": report.notes,
        "measures": measures,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownVariableType]


def to_csv(report: Report) -> str:
    """A line per measure; the card is in columns of its own, so that files can be joined."""
    out = io.StringIO()
    names = [
        *("scenario", "key", "metric", "unit", "side", "streams", "prompt"),
        *("better", "median", "least", "most", "rounds"),
    ]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, *(f"card.{name}" for name in report.card)])
    for m in report.measures:
        seen = m.spread
        figures = (_figure(seen.median), _figure(seen.least), _figure(seen.most))
        rounds = " ".join(_figure(value) for value in m.values)
        place = (m.streams if m.streams else "", m.prompt if m.prompt else "")
        named = (m.scenario, m.key, m.metric, m.unit, m.side, *place, m.better)
        writer.writerow([*named, *figures, rounds, *report.card.values()])
    return out.getvalue()


def _figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def to_markdown(report: Report) -> str:
    """A page: the tables, the notes, the card."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Report) -> Iterator[str]:
    yield f"# {report.title}"
    yield ""
    yield READING
    for section in report.sections():
        heads = section.headings()
        yield from ("", f"## {section.scenario}", "", _line(heads))
        yield _line(["---"] * 2 + ["---:"] * (len(heads) - 2))
        yield from map(_line, section.lines())
    if report.notes:
        yield from ("", "## Notes", "", *(f"- {note}" for note in report.notes))
    for name, facts in (("The machine", report.card), ("Settings", report.settings)):
        yield from ("", f"## {name}", "", _line(["what", "value"]), _line(["---", "---"]))
        for key, value in facts.items():
            yield _line([key, str(value)])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(each.replace("|", "\\|").replace("\n", " ") for each in cells) + " |"
