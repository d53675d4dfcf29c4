"""What a schema makes of a text that bears no type: JSON text for arguments written as tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from gristmill.text.tools import literal

_MAX_DEPTH = 8
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"),
    (dict, "object"),
)  # fmt: skip
TEXT = frozenset({"string"})
"""The kinds of what can only be a text."""


def kinds(schema: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; empty when it does not say."""
    given = schema.get("type")
    if isinstance(given, str):
        found = {given}
    elif isinstance(given, list):
        found = {each for each in cast("list[object]", given) if isinstance(each, str)}
    elif isinstance(schema.get("enum"), list):
        found = {_kind(each) for each in cast("list[object]", schema["enum"])}
    elif "const" in schema:
        found = {_kind(schema["const"])}
    else:
        found: set[str] = set()
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            for branch in cast("list[object]", branches) if isinstance(branches, list) else ():
                inner: dict[str, object] = branch if isinstance(branch, dict) else {}  # pyright: ignore
                some = kinds(inner, depth + 1) if depth < _MAX_DEPTH else frozenset[str]()
                if not some:
                    return frozenset()
                found |= some
    if schema.get("nullable") is True:
        found.add("null")
    return frozenset(found)


def _kind(value: object) -> str:
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "null"


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The JSON text of a value of one of these types (of any, when there are none).

    What is no value of them is a string: the schema's own check says so better than a guess.
    """
    bare = text.strip()
    known = bare if _is_json(bare) else literal.parse(bare, literal.PYTHON)
    if known is not None and not known.startswith('"'):
        kind = _kind(_value(known))
        fits = kind in allowed or (kind == "integer" and "number" in allowed)
        if fits or "string" not in allowed:
            return known
    elif known is not None and allowed and "string" not in allowed:
        return known
    return f'"{literal.quoted(text)}"'


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(word)


def _value(known: str) -> object:
    try:
        return json.loads(known)
    except (ValueError, RecursionError):  # a number of too many digits
        return 0


def rule(name: str, schema: Mapping[str, Any]) -> str:
    """The name of the rule for a value's text, ``rules`` defines it."""
    return name.upper() if _plain(schema) else name


def rules(name: str, schema: Mapping[str, Any], end: str) -> str:
    """Lark rules for the text of a value up to the tag ``end``."""
    if _plain(schema):
        first, rest = end[0], end[1:2]
        # Any text in which the tag's first two characters do not meet.
        a, b = _escaped(first), _escaped(rest)
        return f"{name.upper()}: /(?s:[^{a}]*({a}+[^{a}{b}][^{a}]*)*)/\n"
    if kinds(schema) == TEXT:
        choices = cast("list[object]", schema.get("enum") or [schema.get("const")])
        return f"{name}: {' | '.join(json.dumps(each, ensure_ascii=False) for each in choices)}\n"
    return f"{name}: %json {json.dumps(dict(schema), ensure_ascii=False)}\n"


def _plain(schema: Mapping[str, Any]) -> bool:
    """Whether a value is any text."""
    allowed = kinds(schema)
    free = "enum" not in schema and "const" not in schema
    return not allowed or (free and allowed == TEXT)


def _escaped(char: str) -> str:
    return "\\" + char if char in "\\/]^-[|<>" else char
