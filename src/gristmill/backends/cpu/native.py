"""Which native module to load: the best level this processor runs, chosen once."""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType
from typing import Any

from gristmill.errors import ResourceError, UsageError

ISA_VARIABLE = "GRISTMILL_ISA"
"""Environment variable that forces a level, for tests and comparisons."""


def _built(level: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"gristmill.backends.cpu._native_{level}")
    except ModuleNotFoundError:
        return None


def runnable() -> list[str]:
    """Levels this processor runs, best first. Raises ResourceError when nothing was built."""
    try:
        detect: Any = importlib.import_module("gristmill.backends.cpu._detect")
    except ModuleNotFoundError as error:
        raise ResourceError(
            "gristmill's native kernels are missing from this installation: "
            "install it again with `pip install --force-reinstall gristmill`, or run `make serve`."
        ) from error
    return list(detect.levels())


@cache
def native() -> Any:
    """The native module. Raises UsageError when a forced level cannot run here."""
    levels = runnable()
    forced = os.environ.get(ISA_VARIABLE)
    if forced:
        module = _built(forced) if forced in levels else None
        if module is None:
            raise UsageError(
                f"{ISA_VARIABLE}={forced!r} cannot run on this processor; it runs "
                f"{', '.join(levels)}."
            )
        return module
    for level in levels:
        module = _built(level)
        if module is not None:
            return module
    raise ResourceError("No native kernels were built for this processor; reinstall gristmill.")
