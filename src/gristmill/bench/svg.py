"""Small plots as SVG: lines over a few x values, and bars. No library, no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 34, 46
COLOURS = ("#c2562d", "#2f6f9f", "#5b8c3e", "#8a5fa8", "#b8860b", "#3b8686")


@dataclass(frozen=True, slots=True)
class Point:
    """A median at ``x``, between ``least`` and ``most``."""

    x: float
    y: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Series:
    """One side's points, by rising x."""

    name: str
    points: tuple[Point, ...]


def ticks(most: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to at least ``most``: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not most > 0 or math.isinf(most):
        return [0.0, 1.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def lines(title: str, x_name: str, y_name: str, series: Sequence[Series]) -> str:
    """Lines with whiskers from least to most. x values stand at equal distances."""
    xs = sorted({point.x for each in series for point in each.points})
    marks = ticks(max((p.most for each in series for p in each.points), default=1.0))
    place = {x: _across(i, len(xs)) for i, x in enumerate(xs)}
    parts = [_axes(title, y_name, marks), _centred(_middle(), HEIGHT - 8, x_name)]
    parts += [_centred(place[x], HEIGHT - BOTTOM + 18, f"{x:g}") for x in xs]
    for index, each in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        at = [(place[p.x], _up(p.y, marks), p) for p in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, p in at:
            low, high = _up(p.least, marks), _up(p.most, marks)
            parts.append(_line(x, low, x, high, colour))
            label = escape(f"{each.name}: {p.y:.4g} ({p.least:.4g}–{p.most:.4g}) at {p.x:g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">'
                f"<title>{label}</title></circle>"
            )
    return _whole(parts, [each.name for each in series])


def bars(title: str, y_name: str, values: Sequence[tuple[str, Point]]) -> str:
    """A bar for each name, with whiskers."""
    marks = ticks(max((p.most for _, p in values), default=1.0))
    parts = [_axes(title, y_name, marks)]
    for index, (name, p) in enumerate(values):
        x, colour = _across(index, len(values)), COLOURS[index % len(COLOURS)]
        top, floor = _up(p.y, marks), _up(0, marks)
        parts.append(
            f'<rect x="{x - 28:.1f}" y="{top:.1f}" width="56" height="{floor - top:.1f}" '
            f'fill="{colour}"><title>{escape(f"{name}: {p.y:.4g}")}</title></rect>'
        )
        parts.append(_line(x, _up(p.least, marks), x, _up(p.most, marks), "currentColor"))
        parts.append(_centred(x, HEIGHT - BOTTOM + 18, name))
    return _whole(parts, [])


def _across(index: int, count: int) -> float:
    room = WIDTH - LEFT - RIGHT
    return LEFT + room * (index + 0.5) / max(1, count)


def _up(value: float, marks: list[float]) -> float:
    room = HEIGHT - TOP - BOTTOM
    return HEIGHT - BOTTOM - room * value / marks[-1]


def _middle() -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) / 2


def _axes(title: str, y_name: str, marks: list[float]) -> str:
    heading = escape(f"{title}, {y_name}")
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{heading}</text>']
    for value in marks:
        y = _up(value, marks)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
        )
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _centred(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _whole(parts: list[str], legend: list[str]) -> str:
    height = HEIGHT + 18 * len(legend)
    for index, name in enumerate(legend):
        y = HEIGHT + 18 * index + 6
        parts.append(
            f'<rect x="{LEFT}" y="{y - 9}" width="14" height="4" '
            f'fill="{COLOURS[index % len(COLOURS)]}"/>'
            f'<text x="{LEFT + 20}" y="{y}">{escape(name)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'width="{WIDTH}" font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )
