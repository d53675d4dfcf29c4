"""The flags of ``gristmill serve`` about its network side and its logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gristmill.cli.option import Size, option

HTTP: tuple[Callable[[Any], Any], ...] = (
    option("Network", "--host", default="127.0.0.1", show_default=True, help="Address to serve."),
    option(
        "Network",
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        show_default=True,
        help="Port to serve; 0 takes a free one.",
    ),
    option(
        "Network",
        "--api-key",
        "api_keys",
        metavar="KEY",
        multiple=True,
        help="Ask for this key on every route but /health; may be repeated. "
        "Default: the key in VLLM_API_KEY, if any.",
    ),
    option(
        "Network",
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keys from a file, one a line.",
    ),
    option(
        "Network",
        "--allowed-origins",
        "--cors-origins",
        "origins",
        metavar="ORIGINS",
        multiple=True,
        help="Web origins that browsers may call from: a JSON list, or separated by commas.",
    ),
    option(
        "Network",
        "--max-body-bytes",
        type=Size(),
        default="64M",
        show_default=True,
        help="Longest request body.",
    ),
    option(
        "Network",
        "--shutdown-timeout",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long running answers may still take after Ctrl-C.",
    ),
)

LOGS: tuple[Callable[[Any], Any], ...] = (
    option(
        "Logs",
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="How much is told on stderr.",
    ),
)
