"""Real server processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.test_serve_process import Child


@pytest.fixture
def child() -> Iterator[Any]:
    """Starts ``gristmill serve`` with flags; all that were started end with the test."""
    made: list[Child] = []

    def start(*flags: str, **more: Any) -> Child:
        made.append(Child(*flags, **more))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.wait()
        for pipe in (each.process.stdout, each.process.stderr):
            assert pipe is not None
            pipe.close()
