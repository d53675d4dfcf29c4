"""Grammars of arguments that stand in a row with commas, in the order of the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from gristmill.text.tools import typed
from gristmill.text.tools.base import Tool


def arguments(
    name: str, tool: Tool, argument: Callable[[str, str, Mapping[str, Any]], str], comma: str
) -> str:
    """Rules for the arguments of a tool: ``name``, and ``name_0`` … for each of them.

    ``argument`` makes a rule's definition (further rules may follow it on lines of their own)
    from its name, the argument's, and its schema. Required arguments come first.
    """
    given: object = tool.parameters.get("properties")
    properties = cast("dict[str, object]", given if isinstance(given, dict) else {})
    wanted: object = tool.parameters.get("required")
    required = cast("list[object]", wanted) if isinstance(wanted, list) else []
    order = sorted(properties, key=lambda key: key not in required)
    rules = [f"{name}_{i}" for i in range(len(order))]
    needed = sum(key in required for key in order)
    text = row(rules[:needed], rules[needed:], comma)
    made = [
        argument(rule, key, typed.argument(tool, key))
        for rule, key in zip(rules, order, strict=True)
    ]
    return f"{name}: {text}\n" + "".join(made)


def row(needed: list[str], optional: list[str], comma: str) -> str:
    """The Lark text of a row of rules with commas, of which some may be left out."""
    tail = "".join(f" ({comma} {each})?" for each in optional)
    if needed:
        return f" {comma} ".join(needed) + tail
    starts = [
        optional[i] + "".join(f" ({comma} {each})?" for each in optional[i + 1 :])
        for i in range(len(optional))
    ]
    return f"({' | '.join(starts)})?" if starts else '""'
