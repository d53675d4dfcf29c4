"""JSON schemas that somebody sent: whether they are any, and within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from gristmill.errors import RequestError

MOST_REFERENCES = 1000
MOST_DEPTH = 100
"""Nested arrays and objects in a schema (llguidance's own bound is 128)."""

WHITESPACE = r"(\r?\n)?[ \t]{0,64}"
"""Between the parts of a JSON text: a line end and an indent. Without a bound, a model that has
lost its thread can write white space for ever."""


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
    level: list[object] = [] if schema is True else [schema]
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
