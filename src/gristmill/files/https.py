"""``https://…``: a model at a web address, ``#sha256=<hex>`` behind it if it is known."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit, urlunsplit

from gristmill.errors import UsageError
from gristmill.files.gguf import split_names
from gristmill.files.store import Progress, Store, StoredModel

_SHA256 = re.compile(r"sha256=([0-9a-fA-F]{64})")


def canonical(reference: str) -> str:
    """The address as given; ``UsageError`` if it is none."""
    _parse(reference)
    return reference


def _parse(reference: str) -> tuple[str, str, str | None]:
    """The address without its fragment, its file name, its hash."""
    try:
        url = urlsplit(reference)
        host = url.hostname
    except ValueError as error:
        raise UsageError(f"{reference!r} is not a web address: {error}.") from None
    match = _SHA256.fullmatch(url.fragment)
    if url.fragment and match is None:
        raise UsageError(
            f"{reference!r} ends in #{url.fragment}; only #sha256= and 64 hexadecimal digits "
            "are allowed there."
        )
    name = unquote(url.path.rsplit("/", 1)[-1])
    if not host or not re.fullmatch(r"[^/\\\x00]{1,240}\.gguf", name):
        raise UsageError(
            f"{reference!r} does not name a model file; an address that ends in .gguf is needed."
        )
    return (urlunsplit(url._replace(fragment="")), name, match[1].lower() if match else None)


def fetch(store: Store, reference: str, progress: Progress) -> StoredModel:
    """Download the file, and its siblings if its name says that it is one of several."""
    from gristmill.files.download import Wanted, download  # brings httpx: only when needed

    address, name, sha256 = _parse(reference)
    folder = store.prepare(reference)
    names = split_names(name) or [name]
    url = urlsplit(address)
    base = url.path.rsplit("/", 1)[0]
    for part in names:
        here = address
        if part != name:
            here = urlunsplit(url._replace(path=f"{base}/{part}"))
        if not (folder / part).exists():
            known = sha256 if part == name else None
            download(Wanted(here, folder / part, part, sha256=known), progress)
    return store.record(reference, reference, names, address)
