"""Tool calls in a model's answer: one small file per format, found by the chat template.

A format's file has a ``Format`` (see ``base``): how a template is known to speak it, a parser, and
the grammar that makes a model speak it. A parser takes text in pieces of any size; the joined
results are the same however the text was cut. Most parsers are scripts over a ``reader.Reader``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.errors import UsageError
from gristmill.text.tools import (
    apertus,
    arrays,
    deepseek,
    gemma,
    glm,
    granite,
    harmony,
    hermes,
    invoke,
    kimi,
    kimi_k3,
    llama3,
    messages,
    minicpm,
    minimax_m3,
    mistral,
    pythonic,
    qwen3_coder,
    seed,
)
from gristmill.text.tools.base import Format, Parser, Tool, Wanted

__all__ = ["Format", "Parser", "Tool", "Wanted", "detect", "find", "names", "parser"]

# In the order in which templates are asked: marks that only one format has come first.
FORMATS: tuple[Format, ...] = (
    harmony.FORMAT,
    gemma.GEMMA4,
    gemma.FUNCTION_GEMMA,
    seed.FORMAT,
    invoke.DEEPSEEK_V32,
    invoke.DEEPSEEK_V4,
    invoke.MINIMAX,
    minimax_m3.FORMAT,
    apertus.FORMAT,
    glm.HY3,
    glm.GLM47,
    glm.FORMAT,
    qwen3_coder.FORMAT,
    minicpm.FORMAT,
    messages.SOLAR,
    messages.GIGACHAT,
    granite.PHI4,
    granite.FORMAT,
    pythonic.LLAMA4,
    pythonic.LFM2,
    pythonic.OLMO3,
    mistral.NAMED,
    mistral.LIST,
    deepseek.V31,
    deepseek.V3,
    kimi.FORMAT,
    kimi_k3.FORMAT,
    arrays.NEMOTRON,
    arrays.FIREFUNCTION,
    arrays.COHERE,
    arrays.COMMAND_R_PLUS,
    arrays.LONGCAT,
    arrays.MINIMAX,
    arrays.APRIEL,
    messages.FUNCTIONARY,
    hermes.FORMAT,
    pythonic.PYTHONIC,
    pythonic.GEMMA3,
    llama3.FORMAT,
    arrays.JSON,
)

_BY_NAME = {name: each for each in FORMATS for name in (each.name, *each.aliases)}


def names() -> tuple[str, ...]:
    """Every name of a format, vLLM's ``--tool-call-parser`` names among them."""
    return tuple(_BY_NAME)


def find(name: str) -> Format:
    """The format of this name; hyphens may stand for underscores. Raises UsageError."""
    found = _BY_NAME.get(name.lower().replace("-", "_"))
    if found is None:
        known = ", ".join(sorted(each.name for each in FORMATS))
        raise UsageError(
            f"Unknown tool-call parser '{name}'; formats are {known}, and vLLM's names for them."
        )
    return found


def detect(template_source: str) -> str | None:
    """The name of the format that a chat template speaks, if any."""
    return next((each.name for each in FORMATS if each.detect(template_source)), None)


def parser(name: str, tools: Sequence[Tool], prompt: str = "") -> Parser:
    """A parser for one answer to a request with ``tools``. ``prompt`` is the rendered prompt (its
    end is enough). Raises UsageError for an unknown name."""
    return find(name).parser(tools, prompt)
