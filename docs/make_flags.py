"""Writes docs/flags.md from the flags themselves: ``python docs/make_flags.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from gristmill.cli.accepted import ACCEPTED, REFUSED
from gristmill.cli.environment import VARIABLES
from gristmill.cli.option import Grouped
from gristmill.cli.serve import serve_command

PAGE = Path(__file__).with_name("flags.md")
HEAD = """\
# Flags of `gristmill serve`

Made by `docs/make_flags.py` from the flags themselves; a test says when it is out of date.

Names of vLLM and of llama-server work, also with `_` for `-`. A flag that may be repeated takes
a list in a configuration file. An unknown flag is an error that names the nearest.

The command line stands before `--config FILE`, the file before the environment. The file is
YAML, with flags' names as keys (vLLM's form):

```yaml
model: hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
host: 0.0.0.0
port: 8000
api-key-file: /run/secrets/keys
max-model-len: 8192
enable-log-requests: true
allowed-origins: ["https://chat.example"]
```

Of flags that say the same thing (`--max-model-len` and `-c`; `--host` and `--uds`; those of the
log's level) the weightiest place has the only word.
"""


def page() -> str:
    """The whole page."""
    with click.Context(serve_command, info_name="serve") as ctx:
        parts = [HEAD, *_groups(ctx), _variables(ctx), _accepted(), _refused()]
    return "\n".join(parts)


def _groups(ctx: click.Context) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for param in serve_command.get_params(ctx):
        if not isinstance(param, click.Option) or param.hidden:
            continue
        group = param.group if isinstance(param, Grouped) else "More"
        record = param.get_help_record(ctx)
        assert record is not None
        names = " ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        value = "" if param.is_flag else f"`{param.make_metavar(ctx)}`".replace("|", "\\|")
        text = (param.help or "").replace("|", "\\|")
        groups.setdefault(group, []).append(f"| {names} | {value} | {_default(param)} | {text} |")
    for group, rows in groups.items():
        yield f"## {group}\n\n| names | value | default | meaning |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"


def _default(param: click.Option) -> str:
    if not param.show_default:
        return ""
    if param.is_flag:
        return "on" if param.default else "off"
    return f"{param.default:g}" if isinstance(param.default, float) else f"{param.default}"


def _variables(ctx: click.Context) -> str:
    longest = {
        str(param.name): max(param.opts, key=len)
        for param in serve_command.get_params(ctx)
        if isinstance(param, click.Option)
    }
    rows = [f"| `{variable}` | `{longest[name]}` |" for variable, name in VARIABLES.items()]
    return (
        "## Environment\n\nAs flags; an empty variable is an absent one, several API keys add "
        "up. `VLLM_CPU_KVCACHE_SPACE` is a number of GiB; of `OLLAMA_HOST` the port counts, too "
        "(11434 where it has none). Other variables that begin with `LLAMA_ARG_` are said to mean "
        "nothing.\n\n| variable | as |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        "Besides: `GRISTMILL_HOME` (the model store), `GRISTMILL_ISA` (a level of the kernels), "
        "`HF_TOKEN` and `HF_ENDPOINT` (as `huggingface_hub` reads them).\n"
    )


def _accepted() -> str:
    rows = [f"| {_names(names)} | {why} |" for names, (_, why) in ACCEPTED.items()]
    return (
        "## Taken, without meaning here\n\nOne line on stderr says so at the start.\n\n"
        "| names | because |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _refused() -> str:
    rows = [f"| {_names(names)} | {why} |" for names, (_, why) in REFUSED.items()]
    return (
        "## Refused\n\nThey would change what is served, and are not honoured by this version.\n\n"
        "| names | because |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _names(names: tuple[str, ...]) -> str:
    return " ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
