"""Splitting a model's reasoning from its answer: one small file per format.

A format's file has a ``Format``: how a template is known to speak it, and a parser. A parser
takes text in pieces of any size; the joined results are the same however the text was cut.
"""

from __future__ import annotations

from gristmill.errors import UsageError
from gristmill.text.reasoning import (
    apriel,
    cohere,
    gemma4,
    granite,
    harmony,
    hunyuan,
    kimi,
    minimax,
    mistral,
    seed,
    solar,
    think,
)
from gristmill.text.reasoning.base import Format, Parser
from gristmill.text.reasoning.inline import Inline

__all__ = ["NAMES", "Format", "Inline", "Parser", "detect", "find", "marks", "parser"]

# In the order in which templates are asked: what has a mark of its own before <think>.
_FORMATS = (
    harmony.FORMAT, gemma4.FORMAT, cohere.FORMAT, seed.FORMAT, minimax.FORMAT, mistral.FORMAT,
    apriel.FORMAT, solar.FORMAT, kimi.K3, hunyuan.HY3, granite.FORMAT, hunyuan.FORMAT,
    kimi.FORMAT, think.FORMAT,
)  # fmt: skip

_BY_NAME = {name: each for each in _FORMATS for name in (each.name, *each.aliases)}

NAMES = tuple(_BY_NAME)
"""Every name of a format. Hyphens may stand for underscores."""


def find(name: str) -> Format:
    """The format of this name. Raises UsageError for an unknown one."""
    found = _BY_NAME.get(name.lower().replace("-", "_"))
    if found is None:
        known = ", ".join(sorted(each.name for each in _FORMATS))
        raise UsageError(
            f"Unknown reasoning parser '{name}'; formats are {known}, and vLLM's names for them."
        )
    return found


def detect(template_source: str) -> str | None:
    """The name of the format that a chat template speaks, if any."""
    return next((each.name for each in _FORMATS if each.detect(template_source)), None)


def parser(name: str, prompt: str = "") -> Parser:
    """A parser for one answer. ``prompt`` is the rendered prompt (its end is enough): it may
    have begun the reasoning already. Raises UsageError for an unknown name."""
    return find(name).parser(prompt)


def marks(name: str) -> tuple[str, str]:
    """The texts that begin and end a thought. Raises UsageError for an unknown name."""
    found = find(name)
    return found.open, found.close
