"""Pages that are made from the code are those of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from gristmill.cli.environment import VARIABLES
from gristmill.serve.metrics import NAMES

DOCS = Path(__file__).parents[2] / "docs"


def generator(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flags_page_is_current() -> None:
    page = (DOCS / "flags.md").read_text(encoding="utf-8")
    assert page == generator("make_flags").page(), "run python docs/make_flags.py"
    for variable in VARIABLES:
        assert f"`{variable}`" in page


def test_models_page_is_current() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    assert page == generator("make_models").page(), "run python docs/make_models.py"


def test_metrics_page_names_every_metric() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:vllm|llamacpp|gristmill|http)[\w:]+)`", page))
    assert set(NAMES) <= named, set(NAMES) - named
