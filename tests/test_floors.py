"""The house stands: every room imports only from floors below it (docs/architecture.md).

Every import counts: local ones, typing-only ones, and importlib.import_module with a literal
name. Two lazy doors are allowed: ``backends.open`` and the ``cli``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gristmill"
TABLE = ROOT / "docs" / "architecture.md"

DOORS = {"backends/__init__.py", "cli"}
"""Where a module may be imported by name at run time."""

ONLY = {
    "models": {"backends.ops"},
    "kv": {"backends.ops"},
}
"""What these rooms may see of floor 3: its protocol, never an implementation."""

FORBIDDEN_PACKAGES = {"models": {"numpy", "torch"}, "kv": {"torch"}, "engine": {"torch"}}


@dataclass(frozen=True)
class Import:
    """``file`` (relative to the source) imports ``module`` (dotted) on ``line``."""

    file: str
    module: str
    line: int


def floors(text: str) -> dict[str, int]:
    """Room → floor, from the table of the architecture page."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        row = re.match(r"\|\s*(\d+)\s*\|([^|]*)\|", line)
        if row:
            for name in re.findall(r"`([\w.]+?)(?:\.py|/)`", row[2]):
                found[name] = int(row[1])
    return found


def rooms() -> set[str]:
    """Every module and package right under the source, that holds any code."""
    found = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    found |= {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return found


def imports(source: str, file: str) -> Iterator[Import]:
    """Every module that a file names in an import, of ours and of others."""
    package = ["gristmill", *Path(file).parent.parts]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield Import(file, module, node.lineno)
            for alias in node.names:  # "from gristmill import kv" names a room only here
                yield Import(file, f"{module}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield Import(file, _named(node.args[0] if node.args else None), node.lineno)


def _named(name: ast.expr | None) -> str:
    """The module that a call imports; of an f-string at least what it starts with."""
    if isinstance(name, ast.JoinedStr) and name.values:
        name = name.values[0]
    if isinstance(name, ast.Constant) and str(name.value).count(".") > 0:
        return str(name.value)
    return "<by name>"


def _called(node: ast.Call) -> str:
    function = node.func
    return getattr(function, "attr", None) or getattr(function, "id", "")


def broken(found: Import, table: dict[str, int]) -> str | None:
    """What is wrong with an import, if anything."""
    where = f"{found.file}:{found.line}"
    room = Path(found.file).parts[0].removesuffix(".py")
    in_door = found.file in DOORS or room in DOORS
    if found.module == "<by name>":
        return None if in_door else f"{where} imports by name; only {sorted(DOORS)} may"
    parts = found.module.split(".")
    if parts[0] in FORBIDDEN_PACKAGES.get(room, set()):
        return f"{where} imports {parts[0]}, which {room} does without"
    if parts[0] != "gristmill" or len(parts) == 1 or parts[1] not in table or parts[1] == room:
        return None
    if room not in table:  # __init__, __main__: the package itself
        return None if room == "__main__" and parts[1] == "cli" else f"{where} is in no room"
    target = ".".join(parts[1:])
    if parts[1] == "backends" and not target.startswith(tuple(ONLY.get(room, {"backends"}))):
        return f"{where} may see {ONLY[room]}, not {target}"
    if table[parts[1]] < table[room]:
        return None
    return f"{where} (floor {table[room]}) imports {target} (floor {table[parts[1]]})"


def test_every_room_is_named() -> None:
    table = floors(TABLE.read_text(encoding="utf-8"))
    assert rooms() <= set(table), f"docs/architecture.md does not name {rooms() - set(table)}"


def test_every_import_goes_down() -> None:
    table = floors(TABLE.read_text(encoding="utf-8"))
    files = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
    assert len(files) > 20
    wrong = [
        problem
        for file in sorted(files)
        for found in imports((SOURCE / file).read_text(encoding="utf-8"), file)
        if (problem := broken(found, table))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_back_ends_are_opened_lazily() -> None:
    door = (SOURCE / "backends" / "__init__.py").read_text(encoding="utf-8")
    named = {found.module for found in imports(door, "backends/__init__.py")}
    assert "<by name>" in named
    assert not any(re.match(r"gristmill\.backends\.(cpu|reference)", name) for name in named)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("types.py", "import gristmill.files"),
        ("files/gguf.py", "from gristmill.text import bpe"),
        ("text/a.py", "from gristmill import quant"),
        ("text/a.py", "from .. import quant"),
        ("models/a.py", "import numpy as np"),
        ("models/a.py", "from gristmill.backends.cpu import pack"),
        ("models/a.py", "from gristmill.backends import reference"),
        ("models/a.py", "def f():\n    from gristmill.engine import plan"),
        ("kv/a.py", "if TYPE_CHECKING:\n    from gristmill.engine.step import Step"),
        ("serve/a.py", "import gristmill.bench.online"),
        ("engine/a.py", "importlib.import_module('gristmill.serve')"),
        ("engine/a.py", "importlib.import_module(name)"),
        ("quant/a.py", "from ..backends.ops import X"),
        ("engine/a.py", "importlib.import_module(f'gristmill.serve.{name}')"),
        ("engine/a.py", "importlib.import_module(f'{name}.serve')"),
    ],
)
def test_a_wrong_import_is_seen(file: str, source: str) -> None:
    table = floors(TABLE.read_text(encoding="utf-8"))
    assert any(broken(found, table) for found in imports(source, file))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("models/a.py", "from gristmill.backends.ops import Ops\nfrom gristmill.types import X"),
        ("models/a.py", "from . import layers\nfrom .config import Config"),
        ("engine/a.py", "from gristmill import backends\nfrom gristmill.kv.blocks import B"),
        ("text/a.py", "importlib.import_module(f'gristmill.text.{name}')"),
        ("cli/a.py", "importlib.import_module(name)\nfrom gristmill.serve import app"),
        ("__main__.py", "from gristmill.cli import main"),
    ],
)
def test_a_right_import_is_not(file: str, source: str) -> None:
    table = floors(TABLE.read_text(encoding="utf-8"))
    assert not [broken(f, table) for f in imports(source, file) if broken(f, table)]
