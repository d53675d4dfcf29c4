"""Model references: what a person types → a file on this machine.

A reference is a path, ``pypi:<package>[==version]``, ``hf:<owner>/<repo>[:<quant or file>]``
or ``https://….gguf[#sha256=…]``. What was fetched once is served from the store, offline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import FormatError, SourceError, UnsupportedError, UsageError
from gristmill.files import https, hub, pypi
from gristmill.files.opening import open_model
from gristmill.files.store import Progress, Store, StoredModel, disk_errors, no_progress

__all__ = ["list_models", "remove_model", "resolve", "stored"]


@dataclass(frozen=True, slots=True)
class _Remote:
    """A parsed reference to something that must be fetched."""

    reference: str
    fetch: Callable[[Store, Progress], StoredModel]


def _parse(reference: str) -> _Remote | None:
    """None for a path."""
    scheme, colon, rest = reference.partition(":")
    if scheme in ("http", "https") and rest.startswith("//"):
        address = https.canonical(reference)
        return _Remote(address, lambda store, progress: https.fetch(store, address, progress))
    if colon and scheme == "pypi":
        return _Remote(
            pypi.canonical(rest), lambda store, progress: pypi.fetch(store, rest, progress)
        )
    if colon and scheme == "hf":
        return _Remote(
            hub.canonical(rest), lambda store, progress: hub.fetch(store, rest, progress)
        )
    return None


def resolve(reference: str, progress: Progress = no_progress, store: Store | None = None) -> Path:
    """The file that ``reference`` means, fetched into the store if it is not there.

    Several processes may ask for the same model at once: one fetches, the others wait.
    Raises ``UsageError`` for what is no reference, ``SourceError`` when it cannot be had,
    ``ResourceError`` when the disk is full.
    """
    remote = _parse(reference)
    if remote is None:
        return _local(reference)
    store = store or Store.default()
    known = store.find(remote.reference)
    if known is not None:
        return known.path
    waiting = f"waiting for another download of {remote.reference}"
    with store.lock(f"fetch {remote.reference}", lambda: progress(0, None, waiting)):
        known = store.find(remote.reference)
        if known is not None:
            return known.path
        model = remote.fetch(store, progress)
        _check_sound(store, model, remote.reference)
        return model.path


def stored(reference: str, store: Store | None = None) -> Path | None:
    """The file that ``reference`` means if it is on this machine already, else None."""
    remote = _parse(reference)
    if remote is None:
        return _local(reference)
    known = (store or Store.default()).find(remote.reference)
    return known.path if known else None


def _check_sound(store: Store, model: StoredModel, reference: str) -> None:
    """A login page called model.gguf is found out now, not at the next start."""
    try:
        open_model(model.path).close()
    except (FormatError, UnsupportedError) as error:
        store.remove(reference)
        raise SourceError(f"{reference} did not bring a model: {error}") from error


def _local(reference: str) -> Path:
    if not reference:
        raise UsageError("The model reference is empty; a path, pypi:…, hf:… or https://… is.")
    try:
        path = Path(reference).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        raise SourceError(
            f"{reference!r} is no file here. A model is named by a path, pypi:<package>, "
            "hf:<owner>/<repo>[:<quant>] or an https:// address."
        ) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{reference!r} cannot be read: {error}.") from error
    return path


def list_models(store: Store | None = None) -> list[StoredModel]:
    """The models in the store, by reference."""
    return (store or Store.default()).models()


def remove_model(reference: str, store: Store | None = None) -> int:
    """Delete a model from the store; the bytes freed. ``SourceError`` if it is not there."""
    remote = _parse(reference)
    store = store or Store.default()
    name = remote.reference if remote else reference
    with disk_errors(store.home), store.lock(f"fetch {name}", lambda: None):
        return store.remove(name)
