"""What every format of tool calls is made of: the tools of a request, and ``Format``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gristmill.types import Piece

WHITESPACE = r"(\r?\n)?[ \t]{0,64}"
"""Between the parts of forced JSON; without a bound, a model could write nothing else."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters`` is a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strict: bool = False

    def property(self, key: str) -> Mapping[str, Any]:
        """The schema of one argument; empty when the tool does not say."""
        known: object = self.parameters.get("properties")
        found: object = known.get(key) if isinstance(known, dict) else None  # pyright: ignore
        return found if isinstance(found, dict) else {}  # pyright: ignore


_OPEN = frozenset(
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "$ref",
     "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
)  # fmt: skip
"""Keys that say more of an object's properties than their list."""


class Parser(Protocol):
    """Takes the pieces of one answer in order; the joined results do not depend on the cuts."""

    def push(self, text: str, /) -> Piece:
        """What ``text`` has added."""
        ...

    def flush(self) -> Piece:
        """What was held back, at the end of the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The calls that a grammar must make the model write: at least one, of these tools.

    ``mark`` gives the Lark text that matches a mark: a quoted string, or the id of the special
    token that it is (``<[id]>``), which no string matches.
    """

    tools: Sequence[Tool]
    parallel: bool = True
    mark: Callable[[str], str] = json.dumps


@dataclass(frozen=True)
class Format:
    """How a family of models writes its tool calls.

    ``detect`` looks at a chat template's source. ``parser`` gets the request's tools and the end
    of the prompt. ``grammar`` gives a Lark grammar (llguidance's) that defines ``calls``, with
    which the whole answer (after its reasoning) must agree; names of rules begin with "call".
    ``marks`` are texts that the parser must see even where they are special tokens.
    ``aliases`` are other names of it, those of vLLM's ``--tool-call-parser`` among them.
    ``example`` shows a call to models whose template does not take tools; it holds ``NAME`` and
    ``{"KEY": "VALUE"}``.
    ``written`` writes a call where the example cannot tell how: its name and arguments.
    ``reasons``: its parser splits off the reasoning, too, and gets the raw answer.
    """

    name: str
    detect: Callable[[str], bool]
    parser: Callable[[Sequence[Tool], str], Parser]
    grammar: Callable[[Wanted], str]
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    reasons: bool = False
    example: str = '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>'
    written: Callable[[str, Mapping[str, Any]], str] | None = None


def choice(
    tools: Sequence[Tool], around: Callable[[Tool], tuple[str, str]]
) -> tuple[str, list[str]]:
    """The Lark text of a call of any one of ``tools``, and the rules that it needs.

    A call is the JSON of its arguments between the two Lark texts that ``around`` gives.
    """
    rules: list[str] = []
    for i, tool in enumerate(tools):
        before, after = around(tool)
        rules.append(f"call_{i}: {before} call_{i}_arguments {after}\n")
        rules.append(schema_rule(f"call_{i}_arguments", tool))
    return any_of([f"call_{i}" for i in range(len(tools))]), rules


def any_of(names: Sequence[str]) -> str:
    """The Lark text of a choice."""
    return "(" + " | ".join(names) + ")"


def repeated(one: str, between: str, parallel: bool) -> str:
    """The Lark text of one ``one``, or of several with ``between`` in between."""
    return f"{one} ({between} {one})*" if parallel else one


def schema_rule(name: str, tool: Tool) -> str:
    """A rule ``name`` for a tool's arguments: a JSON object of its schema.

    Of a tool that is not strict, what llguidance cannot enforce in the schema is passed over.
    Where the schema lists properties, the model is held to those: all that it writes is valid,
    though not all that is valid can be written.
    """
    guidance = {"whitespace_pattern": WHITESPACE, "lenient": not tool.strict}
    schema: dict[str, Any] = {"type": "object", **tool.parameters, "x-guidance": guidance}
    if tool.parameters.get("properties") and not _OPEN & schema.keys():
        schema["additionalProperties"] = False
    return f"{name}: %json {json.dumps(schema, ensure_ascii=False)}\n"
