"""How an option of ``gristmill serve`` is declared: with its group of the help page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


class Size(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """Bytes: ``4294967296``, ``4G``, ``512MiB``."""

    name = "SIZE"

    def __init__(self, least: int = 1) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Units are powers of 1,024."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size like 4G, 512M or a number of bytes.", param, ctx)
        scale = 1024 ** " kmgt".index(match[2].lower() or " ")
        size = int(float(match[1]) * scale)
        if size < self.least:
            self.fail(f"{value!r} is nothing; give at least one byte.", param, ctx)
        return size


class Choose(click.IntRange):
    """A number of at least 1; llama-server's -1 and "auto" leave the choice to the server."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """None for the server's choice."""
        if str(value) in ("-1", "auto"):
            return None
        return super().convert(value, param, ctx)


class Grouped(click.Option):
    """An option that knows its group of the help page."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Without the range: the sentence says what matters, an error says the rest."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def option(group: str, *names: str, **settings: Any) -> Callable[[Any], Any]:
    """A decorator that gives a command the option, shown in ``group`` of its help."""
    return click.option(*names, cls=Grouped, group=group, **settings)
