"""``gristmill convert`` and ``quantize``: model files made of model files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gristmill.convert.recipes import Recipe
    from gristmill.types import Checkpoint


def _encodings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that both commands have."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON about the new file."),
        click.option("-t", "--threads", type=click.IntRange(1), help="Default: all cores."),
        click.option(
            "--output-type", metavar="ENCODING", help="The head's encoding, e.g. q8_0 or f16."
        ),
        click.option("--embedding-type", metavar="ENCODING", help="The embedding's encoding."),
        click.option(
            "--imatrix",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="An importance matrix (GGUF or .dat): errors in columns that matter count more.",
        ),
    ):
        command = option(command)
    return command


@click.command("convert")
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--outtype",
    default="auto",
    metavar="TYPE",
    help="auto (bf16, f16 or f32, as the source is), or any type of 'gristmill quantize'.",
)
@_encodings
def convert_command(source: str, target: Path, outtype: str, **options: Any) -> None:
    """Write a model as a GGUF file.

    SOURCE is a folder of safetensors in any format that is served, a GGUF file, or a model of the
    store. TARGET is the file to be written; it is there only when it is whole.
    """
    from gristmill.convert.recipes import recipe_of
    from gristmill.convert.write import plain_recipe_name

    checkpoint = opened(source)
    name = plain_recipe_name(checkpoint) if outtype.lower() == "auto" else outtype
    _write(checkpoint, target, recipe_of(name), **options)


@click.command("quantize")
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("kind", metavar="TYPE")
@_encodings
def quantize_command(source: str, target: Path, kind: str, **options: Any) -> None:
    """Write a model as a GGUF file of fewer bits.

    TYPE: Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 IQ4_NL IQ4_XS MXFP4, or BF16
    F16 F32. SOURCE as for 'gristmill convert'; best one of 16 bits.
    """
    from gristmill.convert.recipes import recipe_of

    recipe = recipe_of(kind)
    _write(opened(source), target, recipe, **options)


def opened(source: str) -> Checkpoint:
    """A model by its path or its name in the store."""
    from gristmill.errors import SourceError
    from gristmill.files import open_model
    from gristmill.files.sources import stored
    from gristmill.models import understand

    path = stored(source)
    if path is None:
        raise SourceError(f"{source} is not in the model store; `gristmill pull {source}` gets it.")
    return understand(open_model(path))


def _write(
    checkpoint: Checkpoint,
    target: Path,
    recipe: Recipe,
    *,
    imatrix: Path | None,
    embedding_type: str | None,
    output_type: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    from gristmill.cli.models import human_bytes, progress_bar
    from gristmill.convert.importance import read_importance
    from gristmill.convert.write import write_model

    importance = None if imatrix is None else read_importance(imatrix)
    with progress_bar() as report:
        written = write_model(
            checkpoint,
            target,
            recipe,
            importance=importance,
            embedding=embedding_type and embedding_type.lower(),
            output=output_type and output_type.lower(),
            threads=threads,
            progress=lambda done, total: report(done, total, f"writing {target.name}"),
        )
    checkpoint.close()
    if as_json:
        facts = {
            "path": str(target),
            "type": recipe.name,
            "bytes": written.bytes,
            "bits_per_weight": round(written.bits_per_weight, 3),
            "tensors": dict(written.encodings),
        }
        click.echo(json.dumps(facts, indent=2))
        return
    kinds = ", ".join(f"{n} {name}" for name, n in written.encodings.items())
    click.echo(
        f"{target}: {human_bytes(written.bytes)}, {written.bits_per_weight:.2f} bits a weight; "
        f"tensors: {kinds}"
    )
