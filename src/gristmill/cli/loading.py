"""From a model's name to something that answers: what the loader thread does."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import EngineError, ModelError, UsageError
from gristmill.options import Options

if TYPE_CHECKING:
    from gristmill.convert.requantise import Requantiser
    from gristmill.engine.loader import Loaded
    from gristmill.files.describe import Description
    from gristmill.serve.protocol import Served
    from gristmill.text.tokenizer import Tokenizer
    from gristmill.types import Checkpoint, Pooling

log = logging.getLogger("gristmill.loader")

Report = Callable[[str, int, int], None]
"""Told the stage, the bytes done and the bytes in all (0: not known)."""

_SUGGESTED = {
    # GGUF's key → the field of SamplingParams
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}


def load_model(
    options: Options, backend: str, report: Report, on_failure: Callable[[EngineError], None]
) -> tuple[Loaded, Served]:
    """Fetches, opens, packs and compiles. Raises GristmillError for what cannot be served."""
    from gristmill.engine.loader import load
    from gristmill.files import open_model
    from gristmill.files.describe import describe
    from gristmill.models import understand

    path = fetch(options.model, report)
    report("opening", 0, 0)
    with naming(path):
        checkpoint = understand(open_model(path))
    try:
        with naming(path):
            described = describe(checkpoint)
            with _packing_bar(described.weight_bytes, report) as packing:
                change = _requantiser(checkpoint, options)
                loaded = load(
                    checkpoint,
                    options,
                    packing,
                    on_failure=on_failure,
                    backend=backend,
                    change=change,
                )
                if change is not None:
                    log.info("%s", change.told())
    except BaseException:
        checkpoint.close()
        raise
    report("starting", 0, 0)
    try:
        return loaded, serve_as(options, loaded, described, path)
    except BaseException:
        loaded.close()
        checkpoint.close()
        raise


def _requantiser(checkpoint: Checkpoint, options: Options) -> Requantiser | None:
    """What --quantization makes of the weights."""
    from gristmill.convert.requantise import requantiser
    from gristmill.engine.machine import look

    if options.quantization is None:
        if options.embedding_type or options.output_type:
            raise UsageError("--embedding-type and --output-type need --quantization.")
        return None
    return requantiser(
        checkpoint,
        options.quantization,
        embedding=options.embedding_type,
        output=options.output_type,
        threads=options.threads or look().cores,
    )


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Errors about a model name its file, wherever in the loading they arise."""
    try:
        yield
    except ModelError as error:
        if path.name in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error


def fetch(reference: str, report: Report) -> Path:
    """The file that a reference means, fetched if it is not here; shown on a terminal, too."""
    from gristmill.cli.models import progress_bar
    from gristmill.files.sources import resolve

    with progress_bar() as bar:

        def fetching(done: int, total: int | None, label: str) -> None:
            report(label, done, total or 0)
            bar(done, total, label)

        return resolve(reference, fetching)


def describe_model(reference: str, report: Report) -> Description:
    """What a model's file says of it; the model is fetched first if it is not here."""
    from gristmill.files import open_model
    from gristmill.files.describe import describe
    from gristmill.models import understand

    checkpoint = understand(open_model(fetch(reference, report)))
    try:
        return describe(checkpoint)
    finally:
        checkpoint.close()


class _packing_bar:
    """Progress of the packing: told to HTTP always, drawn on a terminal if it takes a while."""

    def __init__(self, total: int, report: Report) -> None:
        self._total = total
        self._report = report
        self._began = time.monotonic()
        self._bar: object = None

    def __enter__(self) -> Callable[[float], None]:
        return self.told

    def told(self, share: float) -> None:
        """``share`` of the weights is packed."""
        done = int(share * self._total)
        self._report("packing", done, self._total)
        if sys.stderr.isatty() and (self._bar or time.monotonic() - self._began > 0.5):
            width = 30
            full = int(share * width)
            self._bar = True
            line = f"\rpacking weights [{'#' * full}{'.' * (width - full)}] {share:4.0%}"
            sys.stderr.write(line)
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._bar:
            sys.stderr.write("\r" + " " * 60 + "\r")
            sys.stderr.flush()


def serve_as(options: Options, loaded: Loaded, described: Description, path: Path) -> Served:
    """What the server is given of a loaded model."""
    from gristmill.engine.slotfiles import SlotFiles
    from gristmill.serve.chat import chat_renderer
    from gristmill.serve.protocol import Served
    from gristmill.text.infill import find_infill

    checkpoint = loaded.checkpoint
    meta: dict[str, object] = {
        "architecture": described.architecture,
        "encoding": main_encoding(described),
        "n_params": described.parameters,
        "size": described.weight_bytes,
        "n_embd": described.width,
        "n_ctx_train": loaded.plan.facts.trained_context,
    }
    return Served(
        names=options.served_names or default_names(options.model, path),
        engine=loaded.engine,
        tokenizer=loaded.tokenizer,
        chat=chat_renderer(checkpoint.metadata, loaded.tokenizer, options),
        infill=find_infill(loaded.tokenizer, checkpoint.metadata),
        context=loaded.plan.context,
        created=int(time.time()),
        meta=meta,
        defaults=defaults(options, checkpoint),
        pooling=options.pooling or _pooling(checkpoint),
        most_answers=loaded.plan.max_running + loaded.plan.max_waiting,
        constrain=loaded.grammars.compile,
        slots=SlotFiles(loaded.engine, loaded.plan, checkpoint),
        props=properties(loaded, described, path),
    )


def _pooling(checkpoint: Checkpoint) -> Pooling:
    """How the file says that embeddings are pooled (llama.cpp's numbers)."""
    name = f"{checkpoint.metadata.get('general.architecture')}.pooling_type"
    kinds: Mapping[object, Pooling] = {1: "mean", 2: "first"}
    kind = checkpoint.metadata.get(name)
    return kinds.get(kind, "last") if isinstance(kind, int) else "last"


def properties(loaded: Loaded, described: Description, path: Path) -> dict[str, object]:
    """What ``/props`` says of a model. The file's name only: where it lies is nobody's business."""
    tokenizer, metadata = loaded.tokenizer, loaded.checkpoint.metadata
    template = metadata.get("tokenizer.chat_template")
    bos, eos = (metadata.get(f"tokenizer.ggml.{each}_token_id") for each in ("bos", "eos"))
    return {
        "model_path": path.name,
        "model_ftype": main_encoding(described),
        "chat_template": template if isinstance(template, str) else "",
        "bos_token": _written(tokenizer, bos),
        "eos_token": _written(tokenizer, eos),
    }


def _written(tokenizer: Tokenizer, token: object) -> str:
    if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
        return ""
    return tokenizer.decode([token])


def main_encoding(described: Description) -> str:
    """The encoding of most bytes, as people write it: "Q4_K"."""
    shares = described.encodings
    return shares[0].encoding.upper() if shares else "none"


def default_names(reference: str, path: Path) -> tuple[str, ...]:
    """The name without its ending of a file, or of a folder; then what the person typed, unless
    it is a path."""
    place = path.parent if path.name == "config.json" else path
    stem = place.name if place.is_dir() else path.stem or path.name
    if reference.startswith("hf:") and place.is_dir():
        stem = reference.removeprefix("hf:").partition(":")[0].rpartition("/")[2]
    typed = [reference] if reference.startswith(("pypi:", "hf:", "https:")) else [path.name]
    if reference.startswith("hf:"):
        typed.append(reference.removeprefix("hf:"))
    return tuple(dict.fromkeys([stem, *typed]))


def defaults(options: Options, checkpoint: Checkpoint) -> dict[str, float | int]:
    """Sampling values of requests that give none: the command line's, else the file's."""
    return {**(suggested(checkpoint) if options.file_sampling else {}), **dict(options.sampling)}


def suggested(checkpoint: Checkpoint) -> dict[str, float | int]:
    """Sampling values that the model's file recommends, those of them that make sense."""
    found: dict[str, float | int] = {}
    for key, name in _SUGGESTED.items():
        value = checkpoint.metadata.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6:
            found[name] = value
    return found
