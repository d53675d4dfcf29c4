"""What a schema makes of a text that bears no type: JSON text for arguments written as tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from gristmill.text.tools import literal
from gristmill.text.tools.base import WHITESPACE, Tool

_MAX_DEPTH = 8
_DEFINITIONS = frozenset({"$defs", "definitions"})
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"),
    (dict, "object"),
)  # fmt: skip
TEXT = frozenset({"string"})
"""The kinds of what can only be a text."""
DATA = frozenset({"array", "boolean", "integer", "null", "number", "object"})
"""All others: of these, a text in quotes is JSON as well."""


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


def choices(schema: Mapping[str, object], depth: int = 0) -> list[object] | None:
    """The only values that a schema allows, where it lists them (in branches of it, too)."""
    if isinstance(schema.get("enum"), list):
        return cast("list[object]", schema["enum"]) or None
    if "const" in schema:
        return [schema["const"]]
    found: list[object] = []
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        for branch in cast("list[object]", branches) if isinstance(branches, list) else ():
            inner = cast("dict[str, object]", branch) if isinstance(branch, dict) else {}
            if inner.get("type") == "null":
                some: list[object] | None = [None]
            else:
                some = choices(inner, depth + 1) if depth < _MAX_DEPTH else None
            if some is None:
                return None
            found += some
    return found or None


def argument(tool: Tool | None, key: str) -> Mapping[str, Any]:
    """The schema of a tool's argument, with the definitions that it may refer to; what is only a
    reference is what it refers to. Empty where the tool does not say."""
    if tool is None:
        return {}
    schema: Mapping[str, Any] = tool.property(key)
    for _ in range(_MAX_DEPTH):
        where, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
        known: object = tool.parameters.get(where) if where in _DEFINITIONS else None
        found: object = cast("dict[str, object]", known).get(name) if isinstance(known, dict) else 0
        if not isinstance(found, dict):
            break
        schema = cast("dict[str, Any]", found)
    if "$ref" in json.dumps(dict(schema), default=str):
        return {**{k: tool.parameters[k] for k in _DEFINITIONS & tool.parameters.keys()}, **schema}
    return schema


def json_rule(name: str, schema: Mapping[str, Any]) -> str:
    """A Lark rule for JSON of a schema; what llguidance cannot enforce in it is passed over."""
    guidance = {"whitespace_pattern": WHITESPACE, "lenient": True}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': guidance}, ensure_ascii=False)}\n"


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


def ended(
    name: str,
    schema: Mapping[str, Any],
    line: str,
    end: str,
    mark: Callable[[str], str],
    told: bool = False,
) -> str:
    """Lark rules that define ``name``: the text of a value, and the tag ``end`` after ``line``.

    ``told``: the opening tag says whether the value is a text or JSON. Where it does not, what
    may be a text stands there bare, for quotes would be its own.
    """
    tail = json.dumps(line) + " " + mark(end) if line else mark(end)
    allowed = kinds(schema)
    only = choices(schema)
    bare = allowed == TEXT or (not told and "string" in allowed)
    if only is not None and bare:
        texts = (each if isinstance(each, str) else json.dumps(each) for each in only)
        words = [json.dumps(each, ensure_ascii=False) for each in dict.fromkeys(texts)]
        return f"{name}: ({' | '.join(words)}) {tail}\n"
    if bare or not allowed:
        return free(name, line, end, mark)
    return f"{name}: {name}_value {tail}\n" + json_rule(f"{name}_value", schema)


def free(name: str, line: str, end: str, mark: Callable[[str], str]) -> str:
    """A Lark rule for any text up to ``line`` and ``end``, both included."""
    before, token, after = mark(end).partition("<[")
    if token and not line and not before:  # a token of its own, which no text holds
        return f"{name}: /(?s:.*)/ {mark(end)}\n"
    if token:
        border = line + (json.loads(before) if before else "")
        start = f"{name}_start[suffix={json.dumps(border)}]: /(?s:.*)/\n"
        return f"{name}: {name}_start {token}{after}\n{start}"
    return f"{name}[suffix={json.dumps(line + end, ensure_ascii=False)}]: /(?s:.*)/\n"
