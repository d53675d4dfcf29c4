"""``gristmill eval``: how well a model predicts a text, and how far it is from another."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gristmill.convert.evaluate import Difference, Perplexity


@click.command("eval")
@click.argument("model")
@click.option(
    "--text", required=True, type=click.Path(path_type=Path), help="A text file in UTF-8."
)
@click.option("--against", metavar="MODEL", help="A reference: also KL and top-1 agreement.")
@click.option(
    "-c",
    "--window",
    default=512,
    type=click.IntRange(2 * 8),
    show_default=True,
    help="Tokens of a window; its second half is judged.",
)
@click.option("--windows", type=click.IntRange(1), help="Judge so many windows, not all.")
@click.option("-t", "--threads", type=click.IntRange(1), help="Default: all cores.")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, f32, f16 or bf16.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def eval_command(
    model: str,
    text: Path,
    against: str | None,
    window: int,
    windows: int | None,
    threads: int | None,
    kv_cache_dtype: str,
    as_json: bool,
) -> None:
    """Measure how well MODEL predicts a text: its perplexity, the smaller the better.

    Windows are those of llama.cpp's perplexity tool, so the figures compare. With --against, the
    other model's distributions are the reference: how far MODEL's are from them.
    """
    from gristmill.cli.convert import opened
    from gristmill.cli.models import counting
    from gristmill.convert.evaluate import Evaluated, evaluate, windows_of
    from gristmill.errors import SourceError

    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{text} cannot be read as UTF-8 text: {error}.") from error
    judged = Evaluated(opened(model), window, threads=threads, kv_dtype=kv_cache_dtype)
    cut = windows_of(judged.tokenizer, content, window, windows)
    other = None
    if against is not None:
        other = Evaluated(opened(against), window, threads=threads, kv_dtype=kv_cache_dtype)
    with counting("windows") as report:
        result, difference = evaluate(judged, cut, other, report)
    judged.close()
    if other is not None:
        other.close()
    if as_json:
        facts: dict[str, object] = {"model": model, "window": window, **asdict(result)}
        if difference is not None:
            facts["against"] = {"model": against, **asdict(difference)}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo("\n".join(_lines(result, difference)))


def _lines(result: Perplexity, difference: Difference | None) -> list[str]:
    lines = [
        f"perplexity    {result.perplexity:.4f} ± {result.error:.4f}",
        f"judged        {result.tokens} tokens of {result.windows} windows",
    ]
    if difference is not None:
        base = difference.reference
        lines += [
            f"reference     {base.perplexity:.4f} ± {base.error:.4f}",
            f"KL            {difference.kl:.6f} ± {difference.kl_error:.6f}, "
            f"99 of 100 below {difference.kl_99:.4f}",
            f"same top-1    {difference.same_top:.2%}",
        ]
    return lines
