"""What an answer is held to: the fields for it in all their dialects, and the wait for them.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and older ``guided_*``, llama-server's
``grammar`` and ``json_schema``. At most one of them may be given; what cannot be honoured is
refused with 400 before the engine is asked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import Field

from gristmill.errors import RequestError
from gristmill.serve.fields import Fields, Text, Whole
from gristmill.serve.protocol import Prompt, Served
from gristmill.types import Constraint, SamplingParams

DEADLINE = 10.0
"""Seconds that a constraint may take to be compiled."""

GUIDED = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
    "guided_decoding_backend", "guided_whitespace_pattern",
)  # fmt: skip
"""vLLM's old names that are known here."""

_BACKENDS = frozenset({"auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"})
_LARK = re.compile(r"^\s*(?:%llguidance\b|start\s*:(?!:=))", re.M)
_Found = tuple[Constraint, str]
"""A constraint and the field that asks for it."""


class Constrained(Fields):
    """The fields. ``null``, false and empty texts and lists ask for nothing."""

    response_format: Any = None
    structured_outputs: Any = None
    grammar: Text = ""
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: Text = ""
    guided_choice: Any = None
    guided_grammar: Text = ""
    guided_json_object: Any = None
    guided_decoding_backend: Text = "auto"
    guided_whitespace_pattern: Text = ""
    thinking_budget_tokens: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    thinking_token_budget: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of reasoning, by either name; -1 is no bound, None is unsaid."""
        given = self.thinking_budget_tokens
        return self.thinking_token_budget if given is None else given

    def constraint(self) -> _Found | None:
        """What the fields ask for, and the field's name. Raises RequestError for two at once."""
        if self.guided_decoding_backend.partition(":")[0] not in _BACKENDS:
            raise RequestError(
                f"'guided_decoding_backend' is one of {', '.join(sorted(_BACKENDS))}; all of them "
                "are the same one here.",
                "guided_decoding_backend",
            )
        found = list(self._asked())
        if len(found) > 1:
            names = " and ".join(f"'{name}'" for _, name in found[:2])
            raise RequestError(
                f"Only one constraint can be given; there are {names}.",
                found[1][1].partition(".")[0],
            )
        return found[0] if found else None

    def _asked(self) -> Iterator[_Found]:
        space = self.guided_whitespace_pattern
        yield from _format(self.response_format)
        yield from _structured(self.structured_outputs)
        yield from _grammar(self.grammar, "grammar")
        if self.json_schema is not None:
            yield _schema(self.json_schema, "json_schema"), "json_schema"
        yield from _kinds(
            {
                "json": self.guided_json,
                "regex": self.guided_regex,
                "choice": self.guided_choice,
                "grammar": self.guided_grammar,
                "json_object": self.guided_json_object,
            },
            "guided_{}",
            {"whitespace_pattern": space} if space else {},
        )


async def settle(
    served: Served,
    chosen: SamplingParams,
    fields: Constrained,
    prompt: Prompt | None,
    budget: int | None = None,
) -> SamplingParams:
    """The parameters with the constraint compiled and the reasoning's bounds put in.

    ``chosen`` may carry a constraint already (a forced tool call): another one beside it is
    refused. ``prompt`` is a rendered chat, None for raw prompts. ``budget`` is the server's own.
    Raises: RequestError for what cannot be honoured.
    """
    found = fields.constraint()
    if found is not None:
        if chosen.constraint is not None:
            raise RequestError(
                f"'{found[1]}' and a forced tool call cannot hold at once; "
                "let 'tool_choice' be 'auto' or 'none'.",
                found[1].partition(".")[0],
            )
        chosen = replace(chosen, constraint=found[0])
    asked = fields.thinking_budget
    if prompt is None and asked is not None and asked >= 0:
        raise RequestError(
            "A thinking budget needs a chat: a raw prompt does not tell how its answer thinks.",
            "thinking_budget_tokens",
        )
    budget = budget if asked is None else asked
    thinking = None if prompt is None else prompt.thinking
    if thinking is not None:
        budget = None if budget is None or budget < 0 else budget
        chosen = replace(chosen, thinking=replace(thinking, budget=budget))
    if chosen.constraint is not None:
        await _compile(served, chosen.constraint, found[1] if found else "tool_choice")
    return chosen


async def _compile(served: Served, constraint: Constraint, name: str) -> None:
    param = name.partition(".")[0]
    if served.constrain is None:
        raise RequestError(f"This model cannot be held to '{name}'.", param)
    try:
        made = asyncio.wrap_future(served.constrain(constraint))
        await asyncio.wait_for(made, DEADLINE)
    except TimeoutError:
        raise RequestError(
            f"'{name}' took more than {DEADLINE:g} seconds to compile; it is too complex.", param
        ) from None
    except RequestError as error:
        raise RequestError(f"'{name}': {error}", param) from None


# ------------------------------------------------------------------- fields


def _format(value: object) -> Iterator[_Found]:
    """``response_format``, with llama-server's shorter forms."""
    name = "response_format"
    if value is None:
        return
    given = cast("Mapping[str, object]", value) if isinstance(value, dict) else None
    kind = None if given is None else given.get("type")
    if given is None or not isinstance(kind, str):
        raise RequestError(f"'{name}' must be an object with a 'type'.", name)
    if kind == "text":
        return
    if kind == "json_object":
        schema = given.get("schema")
        yield (Constraint("json_object") if schema is None else _schema(schema, name)), name
    elif kind == "json_schema":
        inner = given.get("json_schema", given)
        if not isinstance(inner, dict) or cast("Mapping[str, object]", inner).get("schema") is None:
            raise RequestError(f"'{name}.json_schema' must be an object with a 'schema'.", name)
        yield _schema(cast("Mapping[str, object]", inner)["schema"], name), name
    elif kind == "structural_tag":
        yield Constraint("structural_tag", _json(given)), name
    else:
        raise RequestError(
            f"'{name}' has the type {kind[:60]!r}; it can be 'text', 'json_object', "
            "'json_schema' or 'structural_tag'.",
            name,
        )


_STRUCTURED = frozenset({
    "json", "regex", "choice", "grammar", "json_object", "structural_tag", "whitespace_pattern",
    "disable_any_whitespace", "disable_additional_properties", "disable_fallback",
})  # fmt: skip


def _structured(value: object) -> Iterator[_Found]:
    """vLLM's ``structured_outputs``."""
    name = "structured_outputs"
    if value is None:
        return
    if not isinstance(value, dict):
        raise RequestError(f"'{name}' must be an object.", name)
    given = {
        key: item for key, item in cast("Mapping[str, object]", value).items() if item is not None
    }
    unknown = next((key for key in given if key not in _STRUCTURED and key[:1] != "_"), None)
    if unknown is not None:
        raise RequestError(f"'{name}' has no field {unknown[:60]!r}.", name)
    if given.get("disable_additional_properties"):
        raise RequestError(
            f"'{name}.disable_additional_properties' is not served; say "
            "'additionalProperties: false' in the schema.",
            name,
        )
    spacing: dict[str, object] = {}
    if given.get("whitespace_pattern"):
        spacing["whitespace_pattern"] = given["whitespace_pattern"]
    if given.get("disable_any_whitespace"):
        spacing["whitespace_flexible"] = False
    yield from _kinds(given, name + ".{}", spacing)


def _kinds(
    given: Mapping[str, object], naming: str, spacing: Mapping[str, object]
) -> Iterator[_Found]:
    schema = given.get("json")
    if schema is not None:
        name = naming.format("json")
        yield _schema(schema, name, spacing), name
    if given.get("json_object"):
        name = naming.format("json_object")
        yield _schema({"type": "object"}, name, spacing), name
    name = naming.format("regex")
    pattern = _text(given.get("regex"), name)
    if pattern:
        yield Constraint("regex", pattern), name
    choices = given.get("choice")
    if choices:
        yield Constraint("choice", _json(choices)), naming.format("choice")
    yield from _grammar(given.get("grammar"), naming.format("grammar"))
    tag = given.get("structural_tag")
    if tag:
        text = tag if isinstance(tag, str) else _json(tag)
        yield Constraint("structural_tag", text), naming.format("structural_tag")


def _grammar(value: object, name: str) -> Iterator[_Found]:
    """GBNF, or Lark where it has Lark's form."""
    text = _text(value, name)
    if text.strip():
        yield Constraint("lark" if _LARK.search(text) else "gbnf", text), name


def _schema(value: object, name: str, spacing: Mapping[str, object] | None = None) -> Constraint:
    """A schema as JSON or as the text of it."""
    text = value if isinstance(value, str) else _json(value)
    if spacing:
        try:
            schema: object = json.loads(text)
        except (ValueError, RecursionError):
            raise RequestError(f"'{name}' is no JSON schema.", name) from None
        if isinstance(schema, dict):
            known = cast("dict[str, object]", schema)
            text = _json({**known, "x-guidance": spacing})
    return Constraint("json_schema", text)


def _text(value: object, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"'{name}' must be a string.", name.partition(".")[0])
    return value


def _json(value: object) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        raise RequestError("A constraint is nested too deeply.") from None
