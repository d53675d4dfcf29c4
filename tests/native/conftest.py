"""The builder of self-tests: starts on everything the session will need, before the first test."""

from __future__ import annotations

import pytest

from tests.native.build import Builder, Program


@pytest.fixture(scope="session")
def builder(request: pytest.FixtureRequest) -> Builder:
    """One builder, busy from the first native test on."""
    made = Builder()
    made.submit(Program("detect", "scalar"))  # every native test asks it first
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "builder" in item.fixturenames:
            for value in getattr(getattr(item, "callspec", None), "params", {}).values():
                if isinstance(value, Program):
                    made.submit(value)
    return made
