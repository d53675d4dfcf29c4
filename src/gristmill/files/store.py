"""The model store: a folder of downloaded models, each with a small record beside it.

``GRISTMILL_HOME`` or ``~/.cache/gristmill`` holds ``models/<identity>/`` with the model's
files and ``model.json``. A model is there when its record is, and the record is written
last, so an interrupted download is never mistaken for a model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from gristmill.errors import ResourceError, SourceError, UsageError

Progress = Callable[[int, int | None, str], None]
"""Told of a download: bytes done, bytes in all (None when unknown), what is being done."""

RECORD = "model.json"

_ENDINGS = r"\.(gguf|safetensors|json|jinja|model|txt)"
"""Files a model may consist of."""


def no_progress(_done: int, _total: int | None, _label: str) -> None:
    """A ``Progress`` that tells nobody."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store. ``path`` is the file to open, ``folder`` holds all of its files."""

    references: tuple[str, ...]
    """Every reference that led here; the first is the one it was fetched under."""
    folder: Path
    files: tuple[str, ...]
    bytes: int
    source: str
    fetched: float
    """Seconds since 1970."""

    @property
    def path(self) -> Path:
        """The model's first file."""
        return self.folder / self.files[0]


@dataclass(frozen=True, slots=True)
class Store:
    """The store in the folder ``home``."""

    home: Path

    @classmethod
    def default(cls) -> Store:
        """The store that the environment names."""
        named = os.environ.get("GRISTMILL_HOME")
        try:
            home = Path(named).expanduser() if named else Path.home() / ".cache" / "gristmill"
        except RuntimeError as error:
            raise UsageError(f"The model store has no place: {error} Set GRISTMILL_HOME.") from None
        return cls(home.absolute())

    def folder(self, identity: str) -> Path:
        """The folder of the model called ``identity``; it need not exist."""
        return self.home / "models" / _slug(identity)

    def scratch(self, identity: str) -> Path:
        """A folder for what is in the making; it need not exist."""
        return self.home / "tmp" / _slug(identity)

    def make(self, folder: Path) -> Path:
        """Create a folder of the store."""
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def models(self) -> list[StoredModel]:
        """All complete models, by reference."""
        found = (_read_record(path) for path in self.home.glob(f"models/*/{RECORD}"))
        return sorted((m for m in found if m is not None), key=lambda m: m.references)

    def find(self, reference: str) -> StoredModel | None:
        """The complete model that ``reference`` led to before; the newest if several did."""
        matching = [m for m in self.models() if reference in m.references]
        return max(matching, key=lambda m: m.fetched, default=None)

    def at(self, identity: str) -> StoredModel | None:
        """The complete model called ``identity``."""
        return _read_record(self.folder(identity) / RECORD)

    def prepare(self, identity: str) -> Path:
        """The folder to fetch the model ``identity`` into. What is left there of an earlier
        try is kept; what was a model once and is damaged now is not."""
        folder = self.folder(identity)
        if (folder / RECORD).exists() and self.at(identity) is None:
            with disk_errors(folder):
                shutil.rmtree(folder)
        return self.make(folder)

    def record(self, identity: str, reference: str, files: list[str], source: str) -> StoredModel:
        """Declare the files in the folder of ``identity`` a complete model."""
        folder = self.folder(identity)
        total = sum((folder / name).stat().st_size for name in files)
        model = StoredModel((reference,), folder, tuple(files), total, source, time.time())
        self._write(model)
        return model

    def also_called(self, model: StoredModel, reference: str) -> StoredModel:
        """Remember that ``reference`` leads to ``model`` too."""
        if reference in model.references:
            return model
        model = replace(model, references=(*model.references, reference))
        self._write(model)
        return model

    def remove(self, reference: str) -> int:
        """Delete a model and what is left of interrupted downloads of it; the bytes freed."""
        model = self.find(reference)
        folder = model.folder if model else self.folder(reference)
        if not folder.is_dir():
            held = ", ".join(m.references[0] for m in self.models())
            raise SourceError(
                f"{reference!r} is not in the model store {self.home}; "
                + (f"it holds {held}." if held else "it is empty.")
            )
        with disk_errors(folder):
            freed = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
            (folder / RECORD).unlink(missing_ok=True)  # first: a half-deleted model is no model
            shutil.rmtree(folder)
        return freed

    @contextmanager
    def lock(self, name: str, waiting: Callable[[], None]) -> Generator[None]:
        """Hold the lock ``name`` against other processes and threads.

        ``waiting`` is called once when somebody else holds it. The operating system frees
        the lock when its holder dies.
        """
        folder = self.make(self.home / "locks")
        with disk_errors(folder):
            file = open(folder / f"{_slug(name)}.lock", "a+b")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, model: StoredModel) -> None:
        fields = asdict(model)
        del fields["folder"]
        path = model.folder / RECORD
        draft = path.with_name(f".{RECORD}.{os.getpid()}")
        with disk_errors(path, draft):
            draft.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
            draft.replace(path)


def model_name(path: str, where: str) -> str:
    """The last part of ``path``, if it is a fit name for a model file in the store."""
    name = path.rsplit("/", 1)[-1]
    if re.fullmatch(r"[^/\\\x00-\x1f]{1,200}" + _ENDINGS, name) is None or name == RECORD:
        raise SourceError(f"{where} holds a file with the unfit name {name[:300]!r}.")
    return name


def _slug(identity: str) -> str:
    """A folder name that a person recognises and that no two identities share."""
    readable = re.sub(r"[^A-Za-z0-9._=+-]+", "--", identity).strip("-.")[:80]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _read_record(path: Path) -> StoredModel | None:
    """The model that a record describes, or None if it is unreadable or a file is not there."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            return None
        fields = cast("dict[str, object]", found)
        files = [name for name in _strings(fields["files"]) if Path(name).name == name]
        references = _strings(fields["references"])
        total = sum((path.parent / name).stat().st_size for name in files)
        if not files or not references or total != fields["bytes"]:
            return None
        fetched = fields["fetched"]
        return StoredModel(
            tuple(references),
            path.parent,
            tuple(files),
            total,
            str(fields["source"]),
            float(fetched) if isinstance(fetched, (int, float)) else 0.0,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _strings(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError(value)
    return [str(item) for item in cast("list[object]", value)]


@contextmanager
def disk_errors(path: Path, *leftovers: Path) -> Generator[None]:
    """Turn a full or read-only disk into a ``ResourceError``; delete ``leftovers`` then."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"The disk is full: {path} could not be written. Free some space, or set "
                "GRISTMILL_HOME to a larger disk."
            ) from error
        raise ResourceError(
            f"{path} cannot be written: {error.strerror}. GRISTMILL_HOME can name another place."
        ) from error


_DISK_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.EIO,
        errno.ENAMETOOLONG,
        errno.ENOENT,  # a place where nothing can be made: /proc, a folder that was deleted
        errno.ELOOP,
    }
)


def check_room(folder: Path, nbytes: int, label: str) -> None:
    """Refuse a download that cannot fit, before it has cost anything."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise ResourceError(
            f"The disk is full: {label} needs {nbytes / 1e6:,.0f} MB, but {folder} has "
            f"{free / 1e6:,.0f} MB free. Set GRISTMILL_HOME to a larger disk."
        )
