"""Back ends: places where models run. ``open`` is the lazy door to them."""

from __future__ import annotations

import importlib
from typing import cast

from gristmill.backends.ops import Backend
from gristmill.errors import UsageError

BACKENDS = {"cpu": "gristmill.backends.cpu", "reference": "gristmill.backends.reference"}
"""Name → module with ``open_backend(threads: int | None) -> Backend``."""


def open(name: str = "cpu", threads: int | None = None) -> Backend:
    """Open a back end by name; only then is its module imported.

    ``threads`` None lets the back end choose. Raises UsageError for an unknown name.
    """
    module = BACKENDS.get(name)
    if module is None:
        raise UsageError(f"There is no back end {name!r}; there are: {', '.join(BACKENDS)}.")
    return cast(Backend, importlib.import_module(module).open_backend(threads))
