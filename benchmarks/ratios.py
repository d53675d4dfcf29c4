"""One Markdown table of many reports of `gristmill bench`: how many times faster gristmill is.

    python benchmarks/ratios.py results/*.json

A row for each report, a column for each figure: gristmill's median, and in brackets the ratio
of the medians to the next side's, of that very run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WANTED = ("output_tps", "prompt_tps", "load", "cold", "pss")


def figures(report: dict[str, Any]) -> dict[str, str]:
    """Column → cell."""
    sides = report["sides"]
    medians: dict[str, dict[str, Any]] = {}
    for m in report["measures"]:
        if m["key"] in WANTED:
            name = f"{m['scenario']}: {m['metric']}, {m['unit']}"
            medians.setdefault(name, {})[m["side"]] = (m["median"], m["better"])
    found: dict[str, str] = {}
    for name, values in medians.items():
        if sides[0] not in values:
            continue
        ours, better = values[sides[0]]
        found[name] = f"{ours:.4g}"
        if len(sides) > 1 and sides[1] in values:
            theirs = values[sides[1]][0]
            ratio = ours / theirs if better == "higher" else theirs / ours
            found[name] += f" ({ratio:.2f}×)"
    return found


def main() -> None:
    """Read, print."""
    reports = {Path(name).stem: json.loads(Path(name).read_text()) for name in sys.argv[1:]}
    cells = {name: figures(report) for name, report in reports.items()}
    rows = list(dict.fromkeys(row for found in cells.values() for row in found))
    print(f"| measure | {' | '.join(cells)} |")
    print(f"|---|{'---:|' * len(cells)}")
    for row in rows:
        print(f"| {row} | {' | '.join(found.get(row, '–') for found in cells.values())} |")
    for name, report in reports.items():
        card = report["card"]
        parts = ("cpu", "isa", "threads", "read bandwidth GB/s", "load before", "commit", "date")
        print(f"\n{name}: " + ", ".join(f"{part} {card[part]}" for part in parts if part in card))


if __name__ == "__main__":
    main()
