"""From a ``Constraint`` to llguidance's language, with bounds on all that a client may send.

llguidance walks what it is given by recursion, in native code where too deep a walk ends the
process; so definitions and references are counted here first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from llguidance import LLMatcher

from gristmill.engine.grammar.gbnf import gbnf_to_lark
from gristmill.errors import RequestError
from gristmill.types import Constraint

MOST_CHARS = 1 << 20
MOST_CHOICES = 10_000
MOST_DEFINITIONS = 1000
MOST_PARENTHESES = 10_000
MOST_REFERENCES = 1000
MOST_DEPTH = 100
"""Nested arrays and objects in a schema (llguidance's own bound is 128)."""

WHITESPACE = r"(\r?\n)?[ \t]{0,64}"
"""Between the parts of a JSON text: a line end and an indent. Without a bound, a model that has
lost its thread can write white space for ever."""

_DEFINITION = re.compile(r"^[ \t]*[?!]?[A-Za-z_][\w.-]*(?:\[[^\]\n]*\])?(?:\.-?\d+)?[ \t]*:", re.M)


def source(constraint: Constraint) -> str:
    """The grammar as llguidance reads it. Raises RequestError, without ``param``."""
    if len(constraint.text) > MOST_CHARS:
        raise RequestError(
            f"The constraint has {len(constraint.text)} characters; the most is {MOST_CHARS}."
        )
    if constraint.kind == "json_object":
        return _schema('{"type": "object"}')
    if constraint.kind == "json_schema":
        return _schema(constraint.text)
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "choice":
        return _choice(constraint.text)
    if constraint.kind == "lark":
        return lark(constraint.text)
    if constraint.kind == "gbnf":
        return lark(gbnf_to_lark(constraint.text))
    from gristmill.engine.grammar.tags import structural_tag

    return lark(structural_tag(constraint.text))


def lark(text: str) -> str:
    """A grammar in llguidance's variant of Lark, counted."""
    definitions = sum(1 for _ in _DEFINITION.finditer(text))
    if definitions > MOST_DEFINITIONS:
        raise RequestError(
            f"The grammar has {definitions} definitions; the most is {MOST_DEFINITIONS}."
        )
    if text.count("(") + text.count("[") > MOST_PARENTHESES:
        raise RequestError(f"The grammar has more than {MOST_PARENTHESES} parentheses.")
    return LLMatcher.grammar_from_lark(text)


def parse(text: str, what: str) -> object:
    """JSON that somebody sent. Raises RequestError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"{what} is no JSON: {why}.") from None


def check_schema(schema: object) -> None:
    """Raises RequestError for a schema that is none, or too deep or intricate to compile."""
    if schema is False:
        raise RequestError("The JSON schema is false; nothing can match it.")
    if schema is not True and not isinstance(schema, dict):
        raise RequestError("A JSON schema must be an object or true.")
    references = 0
    level: list[object] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise RequestError(f"The JSON schema is nested more than {MOST_DEPTH} deep.")
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                fields = cast("Mapping[str, object]", item)
                references += "$ref" in fields
                below += fields.values()
            else:
                below += cast("list[object]", item)
        level = [item for item in below if isinstance(item, dict | list)]
    if references > MOST_REFERENCES:
        raise RequestError(
            f"The JSON schema has {references} references; the most is {MOST_REFERENCES}."
        )


def _schema(text: str) -> str:
    schema = parse(text, "The JSON schema")
    check_schema(schema)
    return LLMatcher.grammar_from_json_schema(
        text, defaults={"whitespace_pattern": WHITESPACE}, overrides={"lenient": False}
    )


def _choice(text: str) -> str:
    choices = parse(text, "The list of choices")
    if not isinstance(choices, list) or not choices:
        raise RequestError("The choices must be a list of at least one text.")
    items = cast("list[object]", choices)
    if len(items) > MOST_CHOICES:
        raise RequestError(f"There are {len(items)} choices; the most is {MOST_CHOICES}.")
    if not all(isinstance(item, str) and item for item in items):
        raise RequestError("Every choice must be a text that is not empty.")
    names = " | ".join(json.dumps(item, ensure_ascii=False) for item in items)
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {names}\n")
