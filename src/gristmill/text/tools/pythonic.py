"""Calls written as Python: ``[get_weather(city="Rome"), get_time()]``.

Llama 3.2 and 4, and with marks around them LFM2, OLMo 3 and Gemma 3. The arguments are literals,
read by rules of our own: nothing is ever evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.text.tools import listed, literal, typed
from gristmill.text.tools.base import Format, Parser, Tool, Wanted, any_of
from gristmill.text.tools.marked import close
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

_MAX_NAME = 256


@dataclass(frozen=True)
class Layout:
    """``open`` and ``close`` stand around the calls. ``bare``: an answer that is a list of calls
    of the request's tools counts without them. ``listed``: there are brackets, and commas; else a
    line for each call."""

    open: str = ""
    close: str = ""
    bare: bool = False
    listed: bool = True


class _Script:
    def __init__(self, layout: Layout, tools: Sequence[Tool]) -> None:
        self._layout = layout
        self._tools = {tool.name: tool for tool in tools}

    def __call__(self, reader: Reader) -> Script[None]:
        layout = self._layout
        if layout.bare:
            reader.hold()
            yield from reader.space()
            yield from self._try(reader, "")
        while layout.open and (mark := (yield from reader.content_until((layout.open,)))):
            yield from self._try(reader, mark)

    def _try(self, reader: Reader, mark: str) -> Script[None]:
        try:
            yield from self._calls(reader, known=not mark)
        except MalformedError:
            if reader.held:
                reader.back(mark)
            return
        if mark:
            yield from close(reader, (self._layout.close,))

    def _calls(self, reader: Reader, known: bool) -> Script[None]:
        layout = self._layout
        yield from reader.space()
        brackets = yield from reader.follows("[")
        if layout.listed and known and not brackets:
            raise MalformedError
        while True:
            yield from reader.space()
            yield from self._call(reader, known)
            if not (yield from (_next_listed(reader) if brackets else _next_line(reader))):
                return

    def _call(self, reader: Reader, known: bool) -> Script[None]:
        name = yield from _name(reader)
        if known and name not in self._tools:
            raise MalformedError
        yield from reader.space()
        yield from reader.expect("(")
        reader.call(name)
        yield from self._arguments(reader, self._tools.get(name))

    def _arguments(self, reader: Reader, tool: Tool | None) -> Script[None]:
        positions = _keys(tool)
        before, place = "{", 0
        while True:
            yield from reader.space()
            if (yield from reader.follows(")")):
                break
            if before != "{":
                yield from reader.expect(",")
                yield from reader.space()
                if (yield from reader.follows(")")):
                    break
            # A word may be an argument's name or the beginning of a value without one.
            key, word = "", ""
            char = yield from reader.peek()
            if char.isalpha() or char == "_":
                word = yield from _name(reader)
                yield from reader.space()
                if (yield from reader.follows("=")):
                    key, word = word, ""
            if not key:
                if place >= len(positions):
                    raise MalformedError
                key = positions[place]
                place += 1
            reader.arguments(f'{before}"{literal.quoted(key)}": ')
            if word:
                made = literal.parse(word, literal.PYTHON)
                if made is None:
                    raise MalformedError
                reader.arguments(made)
            else:
                yield from literal.value(reader, reader.arguments, literal.PYTHON)
            before = ", "
        reader.arguments("{}" if before == "{" else "}")


def _next_listed(reader: Reader) -> Script[bool]:
    """Whether another call follows in the list."""
    yield from reader.space()
    if (yield from reader.follows("]")):
        return False
    yield from reader.expect(",")
    yield from reader.space()
    return not (yield from reader.follows("]"))


def _next_line(reader: Reader) -> Script[bool]:
    """Whether another call follows without a list."""
    reader.hold()
    yield from reader.space()
    yield from reader.one_of((",", ";"))
    yield from reader.space()
    char = yield from reader.peek()
    more = char.isalpha() or char == "_"
    if more:
        reader.release()
    else:
        reader.back("")
    return more


def _name(reader: Reader) -> Script[str]:
    name = ""
    while len(name) < _MAX_NAME:
        char = yield from reader.peek()
        if not (char.isalnum() or (char and char in "_.-")):
            break
        name += yield from reader.take()
    if not name or name[0].isdigit():
        raise MalformedError
    return name


def _keys(tool: Tool | None) -> list[str]:
    known: object = tool.parameters.get("properties") if tool else None
    return [str(key) for key in known] if isinstance(known, dict) else []  # pyright: ignore


def _argument(rule: str, key: str, schema: Mapping[str, Any]) -> str:
    name = json.dumps(key + "=", ensure_ascii=False)
    return f"{rule}: {name} {rule}_value\n" + typed.json_rule(f"{rule}_value", schema)


def _grammar(layout: Layout, wanted: Wanted) -> str:
    rules: list[str] = []
    for i, tool in enumerate(wanted.tools):
        head = json.dumps(tool.name + "(", ensure_ascii=False)
        rules.append(f'call_{i}: {head} call_{i}_arguments ")"\n')
        rules.append(listed.arguments(f"call_{i}_arguments", tool, _argument, '", "'))
    one = any_of([f"call_{i}" for i in range(len(wanted.tools))])
    between = '", "' if layout.listed else r'"\n"'
    several = f"{one} ({between} {one})*" if wanted.parallel else one
    if layout.listed:
        several = f'"[" {several} "]"'
    elif layout.open:
        several = rf'"\n" {several} "\n"'
    if layout.open:
        several = f"{wanted.mark(layout.open)} {several} {wanted.mark(layout.close)}"
    return f"calls: {several}\n" + "".join(rules)


def _format(
    name: str, detect: Callable[[str], bool], layout: Layout, aliases: tuple[str, ...] = ()
) -> Format:
    def parser(tools: Sequence[Tool], prompt: str) -> Parser:
        return ScriptParser(_Script(layout, tools))

    def written(called: str, arguments: Mapping[str, Any]) -> str:
        inner = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
        call = f"{called}({inner})"
        if layout.listed:
            return f"{layout.open}[{call}]{layout.close}"
        return f"{layout.open}\n{call}\n{layout.close}"

    return Format(
        name=name,
        detect=detect,
        parser=parser,
        grammar=lambda wanted: _grammar(layout, wanted),
        marks=tuple(filter(None, (layout.open, layout.close))),
        aliases=aliases,
        example=written("NAME", {"KEY": "VALUE"}),
        written=written,
    )


def _literal(value: object) -> str:
    """A value of JSON as Python writes it, texts in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


LLAMA4 = _format(
    "llama4_pythonic",
    lambda source: "<|python_start|>" in source,
    Layout("<|python_start|>", "<|python_end|>", bare=True),
)
LFM2 = _format(
    "lfm2",
    lambda source: any(
        mark in source
        for mark in ("<|tool_call_start|>", "<|tool_list_start|>", '"List of tools: ["')
    ),
    Layout("<|tool_call_start|>", "<|tool_call_end|>"),
)
OLMO3 = _format(
    "olmo3",
    lambda source: "<function_calls>" in source and "</function_calls>" in source,
    Layout("<function_calls>", "</function_calls>", listed=False),
)
GEMMA3 = _format(
    "gemma3",
    lambda source: "```tool_code" in source,
    Layout("```tool_code", "```", listed=False),
)
PYTHONIC = _format(
    "pythonic",
    lambda source: "[func_name1(params_name1=params_value1" in source,
    Layout(bare=True),
    aliases=("llama3_pythonic", "toolace"),
)
