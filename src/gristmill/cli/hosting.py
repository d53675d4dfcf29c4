"""Models as the server's host opens them: their names, what they need, how they are closed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gristmill.cli import loading
from gristmill.errors import EngineError, ResourceError
from gristmill.options import NamedModel, Options
from gristmill.serve.host import Host, Model, Opened, Report

if TYPE_CHECKING:
    from gristmill.engine.loader import Loaded
    from gristmill.files.describe import Description
    from gristmill.files.store import StoredModel

LEAST_KV_TOKENS = 4096
"""A model is loaded beside others only if its KV cache can hold so many tokens (or its context)."""


SHARE = 4
"""Of the room that a model's weights leave, its KV cache may take a quarter: the rest is for
other models. It is set aside in full, so that no growing cache takes what another was promised."""


def host_of(options: Options, opener: ModelOpener) -> Host:
    """The host of what was asked for: the first model pinned, the others by name.

    Raises SourceError for a file that is not there.
    """
    host = Host(
        opener,
        budget=opener.budget,
        keep=options.keep_alive,
        load_timeout=options.load_timeout,
        store=stored_models if options.all_models else None,
    )
    if options.model:
        first = NamedModel(options.model, options.served_names)
        host.add(Model(first.reference, first.names), pinned=True)
    for named in options.more_models:
        host.add(model_of(named))
    if options.all_models:
        for model in stored_models():
            if all(model.path != entry.model.path for entry in host.entries):
                host.add(model)
    return host


def model_of(named: NamedModel) -> Model:
    """A model that was named on the command line, not loaded yet."""
    from gristmill.files.sources import stored

    path = stored(named.reference)
    if path is None:  # it is fetched when it is first asked for
        return Model(named.reference, named.names or (named.reference,))
    info = path.stat()
    names = named.names or loading.default_names(named.reference, path)
    return Model(named.reference, names, info.st_size, info.st_mtime, str(path))


def stored_models() -> list[Model]:
    """The models in the store, as models of a host."""
    from gristmill.files.sources import list_models

    return [stored_model(each) for each in list_models()]


def stored_model(stored: StoredModel) -> Model:
    """One of them. Its names are the file's and every reference that led to it."""
    first = loading.default_names(stored.references[0], stored.path)
    names = tuple(dict.fromkeys([*first, *stored.references]))
    return Model(
        stored.references[0], names, stored.bytes, stored.fetched, str(stored.path), stored=True
    )


class ModelOpener:
    """Implements the host's ``Opener`` with the real loader."""

    def __init__(
        self, options: Options, backend: str, on_failure: Callable[[EngineError], None]
    ) -> None:
        self._options = options
        self._backend = backend
        self._on_failure = on_failure
        several = bool(options.more_models or options.all_models)
        self.budget = options.model_memory
        if self.budget is None and several:
            self.budget = _free()
        """Bytes that all loaded models may take together; None for a server of one model."""

    def need(self, model: Model, report: Report) -> int:
        """See ``Opener``."""
        return least(loading.describe_model(model.reference, report), self._options)

    def load(self, model: Model, room: int | None, report: Report) -> Opened:
        """See ``Opener``."""
        return self.open(model, room, report)[0]

    def open(self, model: Model, room: int | None, report: Report) -> tuple[Opened, Loaded]:
        """The same, and the engine's room's view of it."""
        options = replace(self._options, model=model.reference, served_names=model.names)
        if room is not None:
            described = loading.describe_model(model.reference, report)
            rest = room - described.weight_bytes
            if rest <= 0:
                raise ResourceError(
                    f"Its weights take {described.weight_bytes / 1e6:,.0f} MB, but there is only "
                    f"room for {room / 1e6:,.0f} MB (--model-memory)."
                )
            share = max(rest // SHARE, min(rest, _least_kv(described, options)))
            options = replace(options, kv_bytes=min(rest, options.kv_bytes or share))
        loaded, served = loading.load_model(options, self._backend, report, self._on_failure)
        held = loaded.plan.facts.weights_bytes + loaded.plan.kv_bytes
        path = str(loaded.checkpoint.path) if hasattr(loaded, "checkpoint") else ""
        return Opened(served, held, _Closing(loaded), path), loaded


class _Closing:
    """Closes a model, once, and lets go of it."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded: Loaded | None = loaded

    def __call__(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        loaded.close()
        checkpoint = getattr(loaded, "checkpoint", None)
        del loaded
        if checkpoint is not None:
            checkpoint.close()
        del checkpoint
        # The loader froze what was there, so that no collection walks the vocabularies again.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        _trim()


def _trim() -> None:
    """Small pieces of memory (a vocabulary is half a million) go back to the system, too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def least(described: Description, options: Options) -> int:
    """Bytes without which a model is of no use: its weights and a small KV cache."""
    return described.weight_bytes + _least_kv(described, options)


def _least_kv(described: Description, options: Options) -> int:
    context = options.context or min(described.context or LEAST_KV_TOKENS, LEAST_KV_TOKENS)
    heads = described.kv_heads or described.heads or 1
    head = (described.width or 0) // max(1, described.heads or 1)
    size = 4 if options.kv_dtype == "f32" else 2
    per_token = 2 * heads * head * (described.layers or 0) * size
    # Of a large vocabulary and width a step's buffers take more than one might think.
    return context * per_token + (32 << 20)


def _free() -> int:
    from gristmill.engine.machine import look

    machine = look()
    margin = max(256 << 20, machine.memory_limit // 10)
    return max(0, machine.memory_available - margin)
