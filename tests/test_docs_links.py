"""The pages of the documentation point at what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
CODE = re.compile(r"`[^`]*`")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead(page: Path, text: str) -> list[str]:
    """The relative links of a page's text that lead nowhere."""
    found: list[str] = []
    for match in LINK.finditer(CODE.sub("", FENCE.sub("", text))):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page, page.read_text("utf-8")) == []


def test_a_dead_link_is_seen() -> None:
    page = ROOT / "README.md"
    text = (
        '[a](docs/no.md) `[b](no)` [c](docs/architecture.md#no) <img src="no.svg"> [d](https://x)'
    )
    assert dead(page, text) == ["docs/no.md", "docs/architecture.md#no", "no.svg"]
    assert dead(page, "[a](docs/architecture.md#rooms-file-by-file) [b](LICENSE)") == []


def test_the_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = {name.split("/")[-1] for name in re.findall(r"`([\w/]+\.(?:py|cpp|h))`", text)}
    folders = [ROOT / folder for folder in ("src", "csrc", "tests")]
    there = {path.name for folder in folders for path in folder.rglob("*")}
    assert len(named) > 100 and named <= there, sorted(named - there)


def test_every_module_of_the_long_rooms_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = ("files", "kv", "engine", "engine/grammar", "serve", "text")
    modules = [path for room in rooms for path in (ROOT / "src/gristmill" / room).glob("*.py")]
    assert [
        str(path.relative_to(ROOT))
        for path in modules
        if path.name != "__init__.py" and f"`{path.name}`" not in text
    ] == []
