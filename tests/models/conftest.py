"""Back ends that every model test runs on."""

from __future__ import annotations

import pytest

from gristmill.backends import BACKENDS
from gristmill.backends.ops import Backend

from .runner import open_backend


@pytest.fixture(params=sorted(BACKENDS))
def backend_name(request: pytest.FixtureRequest) -> str:
    """Each back end's name in turn."""
    return str(request.param)


@pytest.fixture
def backend(backend_name: str):
    """The back end, closed afterwards."""
    backend: Backend = open_backend(backend_name)
    yield backend
    backend.close()
