"""Flags that other servers need and this one does not: taken, and said once to mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

MEANINGLESS = "gristmill.meaningless"
"""Key of the context's ``meta``: the sentences to say."""

_NO_GPU = "there is no GPU back end"
_MEMORY = "memory is taken as it is needed"
_ALWAYS = "it is always so"
_TEMPLATE = "the template tells"

ACCEPTED: Mapping[tuple[str, ...], tuple[bool, str]] = {
    # names → (takes a value, why it has no meaning)
    ("--jinja", "--no-jinja"): (False, "templates are always Jinja"),
    ("--enable-auto-tool-choice",): (False, _TEMPLATE),
    ("--tool-call-parser",): (True, _TEMPLATE),
    ("-ngl", "--n-gpu-layers", "--gpu-layers"): (True, _NO_GPU),
    ("-sm", "--split-mode"): (True, _NO_GPU),
    ("-ts", "--tensor-split"): (True, _NO_GPU),
    ("-mg", "--main-gpu"): (True, _NO_GPU),
    ("--gpu-memory-utilization",): (True, _MEMORY),
    ("-tp", "--tensor-parallel-size"): (True, _NO_GPU),
    ("-pp", "--pipeline-parallel-size"): (True, _NO_GPU),
    ("-fa", "--flash-attn"): (True, "attention is always computed blockwise"),
    ("--mlock",): (False, "weights are packed into memory of their own"),
    ("--no-mmap",): (False, "weights are packed into memory of their own"),
    ("-cb", "--cont-batching"): (False, _ALWAYS),
    ("--enable-chunked-prefill",): (False, _ALWAYS),
    ("--metrics",): (False, _ALWAYS),
    ("--slots",): (False, "there are no fixed slots"),
    ("--no-slots",): (False, "there are no fixed slots"),
    ("--no-webui", "--no-ui"): (False, "there is no web page"),
    ("--enforce-eager",): (False, "there is nothing to capture"),
    ("--trust-remote-code",): (False, "code from a model is never run"),
    ("--swap-space",): (True, _MEMORY),
    ("--block-size",): (True, "the KV cache chooses its block"),
    ("--enable-prompt-tokens-details",): (False, _ALWAYS),
    ("--disable-log-stats",): (False, "nothing is logged by the second"),
    ("--disable-log-requests", "--no-enable-log-requests"): (False, "requests are not logged"),
    ("--uvicorn-log-level",): (True, "--log-level is for everything"),
    ("--task", "--runner"): (True, "the file tells"),
    ("-tb", "--threads-batch"): (True, "-t is for prompts and answers alike"),
    ("--threads-http",): (True, "one thread serves all connections"),
    ("--dtype",): (True, "weights are served as they are stored"),
    ("--no-warmup",): (False, "there is no warm-up"),
    ("-v", "--verbose"): (False, "--log-level debug tells more"),
}


def accepted() -> list[Callable[[Any], Any]]:
    """Hidden options that only remember that they were given."""
    made: list[Callable[[Any], Any]] = []
    for names, (takes_value, why) in ACCEPTED.items():
        kind: dict[str, Any] = {"type": str} if takes_value else {"is_flag": True}
        made.append(
            click.option(
                *names,
                hidden=True,
                expose_value=False,
                callback=_remember(" / ".join(names), why),
                **kind,
            )
        )
    return made


def _remember(names: str, why: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            ctx.meta.setdefault(MEANINGLESS, []).append(f"{names} has no meaning here: {why}.")

    return callback
