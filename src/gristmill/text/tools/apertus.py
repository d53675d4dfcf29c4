"""Apertus: a list of objects with one key, the function's name; its value are the arguments.

<|tools_prefix|>[{"NAME": {"KEY": "VALUE"}}]<|tools_suffix|>
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gristmill.text.tools.base import Format, Parser, Tool, Wanted, choice, repeated
from gristmill.text.tools.json_text import MAX_NAME, string, value
from gristmill.text.tools.marked import close
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


def _script(reader: Reader) -> Script[None]:
    while (mark := (yield from reader.content_until((_OPEN,)))) is not None:
        try:
            yield from reader.space()
            yield from reader.expect("[")
            more = True
            while more:
                yield from reader.space()
                yield from _call(reader)
                yield from reader.space()
                more = yield from reader.follows(",")
            yield from reader.expect("]")
        except MalformedError:
            if reader.held:
                reader.back(mark)
            continue
        yield from close(reader, (_CLOSE,))


def _call(reader: Reader) -> Script[None]:
    yield from reader.expect("{")
    yield from reader.space()
    name = yield from string(reader)
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    if not 0 < len(name) <= MAX_NAME or (yield from reader.peek()) != "{":
        raise MalformedError
    reader.call(name)
    yield from value(reader, reader.arguments)
    yield from reader.space()
    yield from reader.expect("}")


def _parser(tools: Sequence[Tool], prompt: str) -> Parser:
    return ScriptParser(_script)


def _grammar(wanted: Wanted) -> str:
    def around(tool: Tool) -> tuple[str, str]:
        return json.dumps(f"{{{json.dumps(tool.name)}: "), '"}"'

    one, rules = choice(wanted.tools, around)
    row = repeated(one, '", "', wanted.parallel)
    return f'calls: {wanted.mark(_OPEN)} "[" {row} "]" {wanted.mark(_CLOSE)}\n' + "".join(rules)


FORMAT = Format(
    name="apertus",
    detect=lambda source: _OPEN in source,
    parser=_parser,
    grammar=_grammar,
    marks=(_OPEN, _CLOSE),
    example=f'{_OPEN}[{{"NAME": {{"KEY": "VALUE"}}}}]{_CLOSE}',
)
