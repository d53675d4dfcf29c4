"""docs/encodings.md names every encoding, with the sizes the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gristmill.quant import COMPOSITES, ENCODINGS

PAGE = Path(__file__).parents[2].joinpath("docs", "encodings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(ENCODINGS))
def test_documented(name: str) -> None:
    encoding = ENCODINGS[name]
    if encoding.block == 1:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE)
        return
    row = re.search(rf"^\| `{name}` \|(.*)$", PAGE, re.MULTILINE)
    assert row, f"no row for {name}"
    cells = [cell.strip() for cell in row[1].split("|")]
    numbers = [cell.split()[0] for cell in cells[:3]]
    assert str(encoding.block_bytes) in numbers
    assert f"{encoding.bits_per_weight:g}" in numbers


@pytest.mark.parametrize("name", list(COMPOSITES))
def test_composites_documented(name: str) -> None:
    assert re.search(rf"^\|[^|]*`{name}`", PAGE, re.MULTILINE)
