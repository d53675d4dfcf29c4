"""The report in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gristmill.bench.report import READING, Report


def show(report: Report, console: Console) -> None:
    """Print the tables, the notes and the card."""
    console.print(f"\n[bold]{escape(report.title)}[/bold]")
    console.print(READING, style="dim")
    for section in report.sections():
        table = Table(title=escape(section.scenario), title_justify="left", title_style="bold")
        for index, name in enumerate(section.headings()):
            table.add_column(escape(name), justify="left" if index < 2 else "right")
        for line in section.lines():
            table.add_row(*map(escape, line))
        console.print(table)
    for note in report.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    card = " · ".join(f"{name} {value}" for name, value in report.card.items())
    console.print(escape(card), style="dim", soft_wrap=True)
