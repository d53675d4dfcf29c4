"""Which models a server has: their flags, and what the names given to them mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from gristmill.cli.option import Size, option
from gristmill.errors import UsageError
from gristmill.options import NamedModel, Options
from gristmill.serve.durations import seconds

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
_NAMED = re.compile(r"(\w[\w.:-]{0,127})=([^=].*)", re.DOTALL)


class Duration(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """``300``, ``5m``, ``1h30m``; ``-1`` is for ever."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Seconds; infinity for ever, since None is click's word for absent."""
        try:
            found = seconds(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}.", param, ctx)
        return float("inf") if found is None else found


MODELS: tuple[Callable[[Any], Any], ...] = (
    click.argument("model", nargs=-1, metavar="[MODEL]..."),
    option(
        "Model",
        "-m",
        "--model",
        "model_flag",
        multiple=True,
        metavar="[NAME=]MODEL",
        help="The model, as a flag. Repeated: several models in one server; the first stays "
        "loaded, others are loaded when a request names them.",
    ),
    option(
        "Model",
        "-hf",
        "--hf-repo",
        "hf",
        multiple=True,
        metavar="REPO[:QUANT]",
        help="A model on the Hugging Face hub; the same as hf:REPO[:QUANT].",
    ),
    option(
        "Model",
        "-a",
        "--alias",
        "--served-model-name",
        "names",
        metavar="NAME",
        multiple=True,
        help="A name that requests may call it; may be repeated. With several models one name "
        "each, in order. Default: from the file.",
    ),
    option("Model", "--any-model", is_flag=True, help="Take requests for any model name."),
    option(
        "Model",
        "--all-models",
        "--store",
        "all_models",
        is_flag=True,
        help="Serve every model in the store, too: each is loaded when a request names it.",
    ),
    option(
        "Model",
        "--model-memory",
        type=Size(),
        help="With several models: most memory that those loaded may take together, their KV "
        "caches included. Default: what is free at the start, less a margin.",
    ),
    option(
        "Model",
        "--keep-alive",
        type=Duration(),
        default="5m",
        show_default=True,
        metavar="DURATION",
        help="With several models: how long one stays loaded after its last use, if it is not "
        "the first; -1 is for ever. A request's keep_alive goes before it.",
    ),
    option(
        "Model",
        "--load-timeout",
        type=Duration(),
        default="5m",
        show_default=True,
        metavar="DURATION",
        help="How long a request waits for its model to be loaded.",
    ),
    option(
        "Model",
        "--allow-pull/--no-allow-pull",
        "allow_pull",
        default=None,
        help="Whether requests may fetch models into the store and delete them there. Default: "
        "only when the server is on loopback or asks for a key.",
    ),
)


def named_models(
    arguments: Sequence[str],
    flags: Sequence[str],
    repositories: Sequence[str],
    names: Sequence[str],
    all_models: bool,
) -> tuple[NamedModel, ...]:
    """The models asked for, in order, each with its names. Empty: none but the store's.

    Raises UsageError for an empty name, and for names that cannot be dealt out.
    """
    given = [*arguments, *flags]
    if "" in given or "" in repositories:
        # an unset variable of a script: it did not mean the default model
        raise UsageError("The model's name is empty; leave it out for the default model.")
    found: dict[str, tuple[str, ...]] = {}
    for each in given:
        name, reference = _parted(each)
        found[reference] = (*found.get(reference, ()), *name)
    for each in repositories:
        found.setdefault(f"hf:{each}", ())
    if not found and not all_models:
        found[Options().model] = ()
    return _deal(found, names)


def _deal(found: dict[str, tuple[str, ...]], names: Sequence[str]) -> tuple[NamedModel, ...]:
    if len(found) == 1:
        ((reference, own),) = found.items()
        models = (NamedModel(reference, tuple(dict.fromkeys([*own, *names]))),)
    elif not names:
        models = tuple(NamedModel(reference, own) for reference, own in found.items())
    elif len(names) == len(found):
        pairs = zip(found.items(), names, strict=True)
        models = tuple(
            NamedModel(reference, tuple(dict.fromkeys([*own, name])))
            for (reference, own), name in pairs
        )
    else:
        raise UsageError(
            f"There are {len(found)} models and {len(names)} names; give one name for each, in "
            "order, or --model NAME=MODEL."
        )
    taken: dict[str, str] = {}
    for model in models:
        for name in model.names:
            if taken.setdefault(name, model.reference) != model.reference:
                raise UsageError(
                    f"Two models are named {name!r}: {taken[name]} and {model.reference}."
                )
    return models


def _parted(given: str) -> tuple[tuple[str, ...], str]:
    """``NAME=MODEL`` in two; ``owner/name`` that is no path here is a hub repository, as in
    vLLM."""
    match = None if Path(given).exists() else _NAMED.fullmatch(given)
    names, model = ((match[1],), match[2]) if match else ((), given)
    if _REPO.fullmatch(model) and not model.endswith(".gguf") and not Path(model).exists():
        model = f"hf:{model}"
    return names, model
