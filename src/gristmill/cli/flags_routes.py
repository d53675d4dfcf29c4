"""The flags of ``gristmill serve`` about routes that are not for everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gristmill.cli.option import option

ROUTES: tuple[Callable[[Any], Any], ...] = (
    option(
        "Routes",
        "--slot-save-path",
        type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
        metavar="DIR",
        help="Where /slots/{id} saves what is cached for a slot, and finds it again; without it "
        "the route is off.",
    ),
    option(
        "Routes",
        "--slots/--no-slots",
        "slots",
        default=True,
        help="GET /slots tells what runs: counts and sampling values.",
    ),
    option(
        "Routes",
        "--slot-prompts",
        is_flag=True,
        help="It tells the prompts and answers too (llama-server: LLAMA_SERVER_SLOTS_DEBUG=1).",
    ),
    option("Routes", "--props", is_flag=True, help="POST /props is answered."),
    option(
        "Routes",
        "--enable-tokenizer-info-endpoint",
        "tokenizer_info",
        is_flag=True,
        help="GET /tokenizer_info tells the special tokens and the chat template.",
    ),
    option(
        "Routes",
        "--dev-mode",
        is_flag=True,
        help="vLLM's routes for development: /reset_prefix_cache and /server_info "
        "(VLLM_SERVER_DEV_MODE=1).",
    ),
)


def route_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``Options``."""
    path: Path | None = given["slot_save_path"]
    return {
        "slot_save_path": None if path is None else str(path.resolve()),
        "slots": given["slots"],
        "slot_prompts": given["slot_prompts"],
        "props": given["props"],
        "tokenizer_info": given["tokenizer_info"],
        "dev_mode": given["dev_mode"],
    }
