"""Anthropic's tools and tool choice into OpenAI's, and the input of a call out of its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import cast

from gristmill.errors import RequestError
from gristmill.serve.dialect import a_list, a_text, an_object, ignored, kind


def chat_tools(value: object) -> list[dict[str, object]]:
    """OpenAI's tools. Raises RequestError for tools that Anthropic's servers would run."""
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(a_list(value, "tools"))]


def _tool(tool: object, at: str) -> dict[str, object]:
    fields = an_object(tool, at)
    what = fields.get("type")
    if what not in (None, "custom"):
        raise RequestError(
            f"'{at}' is of type {str(what)[:60]!r}; this server takes tools of type 'custom', "
            "with an 'input_schema'.",
            at,
        )
    name = a_text(fields, "name", at)
    function: dict[str, object] = {"name": name}
    description = fields.get("description")
    if description is not None:
        description = a_text(fields, "description", at)
    examples = fields.get("input_examples")
    if examples:
        shown = "\n".join(
            json.dumps(each, ensure_ascii=False)
            for each in a_list(examples, f"{at}.input_examples")
        )
        description = f"{description or ''}\nExamples of its input:\n{shown}".strip()
    if description is not None:
        function["description"] = description
    function["parameters"] = an_object(fields.get("input_schema"), f"{at}.input_schema")
    if fields.get("defer_loading"):
        raise ignored(f"{at}.defer_loading")
    if fields.get("allowed_callers") not in (None, [], ["direct"]):
        raise ignored(f"{at}.allowed_callers")
    if fields.get("strict") is not None:
        function["strict"] = fields["strict"]
    return {"type": "function", "function": function}


def chat_choice(value: object) -> tuple[object, bool]:
    """OpenAI's ``tool_choice``, and whether several calls may be made at once."""
    fields = an_object(value, "tool_choice")
    what = kind(fields, "tool_choice")
    alone = fields.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        name = "tool_choice.disable_parallel_tool_use"
        raise RequestError(f"'{name}' must be true or false.", name)
    if what == "tool":
        name = a_text(fields, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}, not alone
    plain = {"auto": "auto", "any": "required", "none": "none"}
    if what not in plain:
        raise RequestError(
            f"'tool_choice.type' is {what!r}; it can be 'auto', 'any', 'tool' or 'none'.",
            "tool_choice",
        )
    return plain[what], not alone


def call_input(arguments: str) -> Mapping[str, object]:
    """The object that a call's JSON says: of one that was cut off, what was complete."""
    value = _loaded(arguments)
    if value is None:
        value = _loaded(completed(arguments))
    return value if value is not None else {}


def _loaded(text: str) -> Mapping[str, object] | None:
    try:
        value: object = json.loads(text, parse_constant=_nothing, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _nothing(_: str) -> None:
    return None


def _finite(digits: str) -> float | None:
    """JSON can write numbers that it cannot be given back as."""
    value = float(digits)
    return value if math.isfinite(value) else None


def completed(text: str) -> str:
    """JSON that was cut off anywhere, cut back to its last whole value and closed."""
    depths, cut = _scan(text, len(text))
    if cut == 0:
        return ""
    depths, _ = _scan(text, cut)
    return text[:cut] + "".join(reversed(depths))


def _scan(text: str, end: int) -> tuple[list[str], int]:
    """The brackets open at ``end``, and the last place before it where a value could end."""
    closers: list[str] = []
    cut = 0
    quoted = escaped = False
    for at in range(end):
        char = text[at]
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
            cut = at + 1
        elif char in "}]" and closers:
            closers.pop()
            cut = at + 1
        elif char == ",":
            cut = at
    return closers, cut
