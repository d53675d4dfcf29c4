from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from gristmill.backends.cpu.native import ISA_VARIABLE, native, runnable
from gristmill.errors import ResourceError


def _levels() -> list[str]:
    """Levels that are built and run here, best first; only the forced one where one is forced."""
    try:
        levels = runnable()
    except ResourceError:
        return []
    forced = os.environ.get(ISA_VARIABLE)
    there = [
        level
        for level in levels
        if importlib.util.find_spec(f"gristmill.backends.cpu._native_{level}") is not None
    ]
    return [forced] if forced in there else there


LEVELS = _levels()


@pytest.fixture(params=LEVELS or [pytest.param("", marks=pytest.mark.skip("nothing is built"))])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each level in turn: the CPU back end opened in the test runs on it."""
    monkeypatch.setenv(ISA_VARIABLE, request.param)
    native.cache_clear()
    yield request.param
    native.cache_clear()


@pytest.fixture
def best() -> str:
    """The level that the CPU back end chooses by itself, or a skip where none is built."""
    if not LEVELS:
        pytest.skip("the native modules are not built")
    native.cache_clear()
    return LEVELS[0]
