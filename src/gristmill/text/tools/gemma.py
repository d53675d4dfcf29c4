"""Gemma 4 and FunctionGemma: ``call:NAME{key:value}`` between marks, texts between others.

<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gristmill.text.tools import listed, literal, typed
from gristmill.text.tools.base import Format, Parser, Tool, Wanted, any_of, repeated
from gristmill.text.tools.marked import close
from gristmill.text.tools.reader import SPACE, MalformedError, Reader, Script, ScriptParser

_MAX_NAME = 256
_MAX_DEPTH = 16


@dataclass(frozen=True)
class _Marks:
    open: str
    close: str
    quote: str


class _Script:
    def __init__(self, marks: _Marks) -> None:
        self._marks = marks

    def __call__(self, reader: Reader) -> Script[None]:
        marks = self._marks
        while (mark := (yield from reader.content_until((marks.open,)))) is not None:
            try:
                yield from self._call(reader)
            except MalformedError:
                if reader.held:
                    reader.back(mark)
                continue
            yield from close(reader, (marks.close,))

    def _call(self, reader: Reader) -> Script[None]:
        yield from reader.space()
        yield from reader.expect("call:")
        name = ""
        while (yield from reader.peek()) != "{":
            char = yield from reader.take()
            name += char
            if char in SPACE or len(name) > _MAX_NAME:
                raise MalformedError
        if not name:
            raise MalformedError
        reader.call(name)
        yield from literal.mapping(reader, reader.arguments, literal.GEMMA)


# ------------------------------------------------------------------- grammar


class _Rules:
    """Makes the rules of values; each has a name of its own."""

    def __init__(self, wanted: Wanted, marks: _Marks) -> None:
        self._quote = wanted.mark(marks.quote)
        self._made = [
            f"call_text: {self._quote} call_free\n",
            typed.free("call_free", "", marks.quote, wanted.mark),
            "call_any: call_text | CALL_NUMBER | call_word | call_list | call_map\n",
            'call_word: "true" | "false" | "null"\n',
            "CALL_NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?/\n",
            "CALL_INTEGER: /-?(0|[1-9][0-9]*)/\n",
            "CALL_KEY: /[A-Za-z_][A-Za-z0-9_]*/\n",
            'call_list: "[" (call_any ("," call_any)*)? "]"\n',
            'call_map: "{" (CALL_KEY ":" call_any ("," CALL_KEY ":" call_any)*)? "}"\n',
        ]

    def argument(self, rule: str, key: str, schema: Mapping[str, Any]) -> str:
        """``key:value``."""
        return f"{rule}: {_text(key + ':')} {self._value(rule, schema, 0)}\n"

    def _value(self, name: str, schema: Mapping[str, Any], depth: int) -> str:
        """The Lark text of a value."""
        only = typed.choices(schema)
        if only is not None:
            return "(" + " | ".join(self._exact(each) for each in only) + ")"
        words = {"string": "call_text", "integer": "CALL_INTEGER", "number": "CALL_NUMBER",
                 "boolean": '("true" | "false")', "null": '"null"'}  # fmt: skip
        ways: list[str] = []
        for kind in sorted(typed.kinds(schema)):
            if kind == "array" and depth < _MAX_DEPTH:
                items = schema.get("items")
                each = cast("dict[str, Any]", items if isinstance(items, dict) else {})
                inner = self._value(f"{name}_i", each, depth + 1)
                ways.append(f'"[" ({inner} ("," {inner})*)? "]"')
            elif kind == "object" and depth < _MAX_DEPTH and schema.get("properties"):
                rule = f"{name}_o"
                inner = _Inner(self, depth + 1)
                self._made.append(
                    listed.arguments(rule, Tool("", "", schema), inner.argument, '","')
                )
                ways.append(f'"{{" {rule} "}}"')
            else:
                ways.append(words.get(kind) or ("call_list" if kind == "array" else "call_map"))
        return f"({' | '.join(ways)})" if ways else "call_any"

    def nested(self, rule: str, key: str, schema: Mapping[str, Any], depth: int) -> str:
        """``key:value`` inside of an object."""
        return f"{rule}: {_text(key + ':')} {self._value(rule, schema, depth)}\n"

    def _exact(self, value: object) -> str:
        if isinstance(value, str):
            return (
                f"{self._quote} {_text(value)} {self._quote}"
                if value
                else f"{self._quote} {self._quote}"
            )
        return _text(json.dumps(value))

    def text(self) -> str:
        """All rules that were made."""
        return "".join(self._made)


@dataclass(frozen=True)
class _Inner:
    rules: _Rules
    depth: int

    def argument(self, rule: str, key: str, schema: Mapping[str, Any]) -> str:
        """See ``_Rules.nested``."""
        return self.rules.nested(rule, key, schema, self.depth)


def _grammar(marks: _Marks, wanted: Wanted) -> str:
    rules = _Rules(wanted, marks)
    made: list[str] = []
    open_, close = wanted.mark(marks.open), wanted.mark(marks.close)
    for i, tool in enumerate(wanted.tools):
        head = _text(f"call:{tool.name}{{")
        made.append(f'call_{i}: {open_} {head} call_{i}_arguments "}}" {close}\n')
        made.append(listed.arguments(f"call_{i}_arguments", tool, rules.argument, '","'))
    one = any_of([f"call_{i}" for i in range(len(wanted.tools))])
    several = repeated(one, "", wanted.parallel)
    return f"calls: {several}\n" + "".join(made) + rules.text()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _format(
    name: str, detect: Callable[[str], bool], marks: _Marks, aliases: tuple[str, ...] = ()
) -> Format:
    def parser(tools: Sequence[Tool], prompt: str) -> Parser:
        return ScriptParser(_Script(marks))

    return Format(
        name=name,
        detect=detect,
        parser=parser,
        grammar=lambda wanted: _grammar(marks, wanted),
        marks=(marks.open, marks.close, marks.quote),
        aliases=aliases,
    )


GEMMA4 = _format(
    "gemma4",
    lambda source: "<|tool_call>" in source,
    _Marks("<|tool_call>", "<tool_call|>", '<|"|>'),
)
FUNCTION_GEMMA = _format(
    "functiongemma",
    lambda source: "<start_function_call>" in source,
    _Marks("<start_function_call>", "<end_function_call>", "<escape>"),
)
