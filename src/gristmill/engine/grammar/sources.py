"""From a ``Constraint`` to llguidance's language, with bounds on all that a client may send.

llguidance walks what it is given by recursion, in native code where too deep a walk ends the
process; so definitions and references are counted here first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import cast

from llguidance import LLMatcher

from gristmill.engine.grammar.gbnf_lark import gbnf_to_lark
from gristmill.engine.grammar.schemas import WHITESPACE, check_schema, parse
from gristmill.engine.grammar.tags import structural_tag
from gristmill.errors import RequestError
from gristmill.types import Constraint

MOST_CHARS = 1 << 20
MOST_CHOICES = 10_000
MOST_DEFINITIONS = 1000
MOST_PARENTHESES = 10_000
MOST_WRITTEN = 50_000
"""Characters of a lexeme, those that it is made of written out."""

_DEFINITION = re.compile(r"^[ \t]*[?!]?[A-Za-z_][\w.-]*(?:\[[^\]\n]*\])?(?:\.-?\d+)?[ \t]*:", re.M)


_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*')
_LEXEME = re.compile(r"^[ \t]*([A-Z_][A-Z0-9_]*)[^:\n]*:(.*(?:\n[ \t]*\|.*)*)", re.M)
_USE = re.compile(r"[A-Z_][A-Z0-9_]*")


def source(
    constraint: Constraint,
    token_id: Callable[[str], int | None],
    special: Callable[[str], int | None],
) -> str:
    """The grammar as llguidance reads it; ``token_id`` finds a token by its text, ``special`` one
    that is no text otherwise.

    Raises RequestError, without ``param``.
    """
    try:
        constraint.text.encode()
    except UnicodeEncodeError:
        raise RequestError("The constraint has half of a surrogate pair in it.") from None
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
        return _lark(gbnf_to_lark(constraint.text, token_id))
    return LLMatcher.grammar_from_lark(structural_tag(constraint.text, special))


def lark(text: str) -> str:
    """A grammar in llguidance's variant of Lark, counted."""
    definitions = sum(1 for _ in _DEFINITION.finditer(text))
    if definitions > MOST_DEFINITIONS:
        raise RequestError(
            f"The grammar has {definitions} definitions; the most is {MOST_DEFINITIONS}."
        )
    if text.count("(") + text.count("[") > MOST_PARENTHESES:
        raise RequestError(f"The grammar has more than {MOST_PARENTHESES} parentheses.")
    return _lark(text)


def _lark(text: str) -> str:
    """Refuses lexemes that are made of one another until they are huge: their size is
    llguidance's time, and its fuel does not bound that."""
    bodies = {name: _QUOTED.sub(_length, body) for name, body in _LEXEME.findall(text)}
    most = max(MOST_WRITTEN, 4 * len(text))
    sizes: dict[str, int] = {}
    waiting = list(bodies)
    while waiting:
        name = waiting[-1]
        uses = [use for use in _USE.findall(bodies[name]) if use in bodies]
        new = [use for use in uses if use not in sizes]
        if name not in sizes and new:
            sizes[name] = 0  # a circle counts once; llguidance refuses it anyway
            waiting += new
            continue
        waiting.pop()
        sizes[name] = len(bodies[name]) + sum(sizes[use] for use in uses)
        if sizes[name] > most:
            raise RequestError(f"The grammar's '{name[:60]}' is more than {most} characters long.")
    return LLMatcher.grammar_from_lark(text)


def _length(quoted: re.Match[str]) -> str:
    return "." * len(quoted[0])


def _schema(text: str) -> str:
    schema = parse(text, "The JSON schema")
    check_schema(schema)
    return LLMatcher.grammar_from_json_schema(
        "{}" if schema is True else text,
        defaults={"whitespace_pattern": WHITESPACE},
        overrides={"lenient": False},
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
