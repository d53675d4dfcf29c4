"""The tools of a chat and the choice between them: checks, and what they come to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gristmill.errors import RequestError

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_Known = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the model is told of tools. ``must``: names of which one has to be called."""

    tools: tuple[Mapping[str, Any], ...] = ()
    must: tuple[str, ...] = ()


def choose(tools: Sequence[object], choice: object) -> Choice:
    """The checked tools that the model sees, and those of which it must call one.

    ``choice`` is OpenAI's ``tool_choice``. Raises RequestError.
    """
    known = _tools(tools)
    seen = tuple(known.values())
    if choice is None or choice == "auto":
        return Choice(seen)
    if choice == "none":
        return Choice()
    if choice == "required":
        return Choice(seen, _some(known))
    if not isinstance(choice, dict):
        raise _refusal("must be 'auto', 'none', 'required' or an object")
    given = cast("Mapping[str, object]", choice)
    if given.get("type") == "allowed_tools":
        return _allowed(known, given)
    return Choice(seen, (_named(given, known, "'tool_choice'"),))


def _allowed(known: _Known, given: Mapping[str, object]) -> Choice:
    """OpenAI's ``allowed_tools``: the model sees all tools where it must call one of some, and
    only those some where it need not."""
    inner = given.get("allowed_tools", given)
    fields: Mapping[str, object] = cast("Any", inner) if isinstance(inner, dict) else {}
    mode, listed = fields.get("mode"), fields.get("tools")
    if mode not in ("auto", "required"):
        raise _refusal("of type 'allowed_tools' must have a 'mode', 'auto' or 'required'")
    if not isinstance(listed, list) or not listed:
        raise _refusal("of type 'allowed_tools' must have a list of 'tools'")
    names: list[str] = []
    for entry in cast("list[object]", listed):
        if not isinstance(entry, dict):
            raise _refusal("of type 'allowed_tools' must list objects")
        names.append(_named(cast("Mapping[str, object]", entry), known, "'tool_choice'"))
    if mode == "required":
        return Choice(tuple(known.values()), tuple(dict.fromkeys(names)))
    return Choice(tuple(tool for name, tool in known.items() if name in names))


def _some(known: _Known) -> tuple[str, ...]:
    if not known:
        raise _refusal("'required' needs 'tools'")
    return tuple(known)


def _named(given: Mapping[str, object], known: _Known, where: str) -> str:
    inner = given.get("function", given)
    fields: Mapping[str, object] = cast("Any", inner) if isinstance(inner, dict) else {}
    name = fields.get("name")
    if given.get("type", "function") != "function" or not isinstance(name, str):
        raise _refusal('as an object must be {"type": "function", "function": {"name": …}}')
    if name not in known:
        names = ", ".join(f"'{each}'" for each in list(known)[:20])
        there = f"the tools are {names}" if known else "there are no tools"
        raise RequestError(f"{where} names the tool {name[:60]!r}; {there}.", "tool_choice")
    return name


def _refusal(what: str) -> RequestError:
    return RequestError(f"'tool_choice' {what}.", "tool_choice")


def _tools(tools: Sequence[object]) -> dict[str, Mapping[str, Any]]:
    known: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(tools):
        at = f"tools[{i}]"
        checked = _tool(tool, at)
        name = checked["function"]["name"]
        if name in known:
            raise RequestError(f"'{at}' has the name {name!r} of a tool before it.", "tools")
        known[name] = checked
    return known


def _tool(tool: object, at: str) -> Mapping[str, Any]:
    """A tool as templates want it: what may be left out is put in."""
    if not isinstance(tool, dict):
        raise RequestError("'tools' must be a list of objects.", "tools")
    fields = cast("dict[str, Any]", tool)
    kind: object = fields.get("type", "function")
    if kind != "function":
        raise RequestError(
            f"'{at}.type' is {str(kind)[:60]!r}; this server takes tools of type 'function'.",
            "tools",
        )
    function: object = fields.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"'{at}.function' must be an object.", "tools")
    told = cast("dict[str, Any]", function)
    name: object = told.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"'{at}.function.name' must be 1 to 128 letters, digits or any of _ - . : /.", "tools"
        )
    if not isinstance(told.get("description", ""), str | None):
        raise RequestError(f"'{at}.function.description' must be a string.", "tools")
    if not isinstance(told.get("strict", False), bool | None):
        raise RequestError(f"'{at}.function.strict' must be true or false.", "tools")
    parameters = _parameters(told.get("parameters"), f"{at}.function.parameters")
    return {**fields, "type": "function", "function": {**told, "parameters": parameters}}


def _parameters(given: object, at: str) -> Mapping[str, Any]:
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise RequestError(f"'{at}' must be a JSON schema, an object.", "tools")
    schema = cast("dict[str, Any]", given)
    kind: object = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise RequestError(f"'{at}' must be the schema of an object.", "tools")
    if not isinstance(schema.get("properties", {}), dict):
        raise RequestError(f"'{at}.properties' must be an object.", "tools")
    return {"type": "object", "properties": {}, **schema}
