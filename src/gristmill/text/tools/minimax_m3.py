"""MiniMax M3: every tag follows a token that no text holds; arguments nest, tag in tag.

    N<tool_call> N<invoke name="NAME">N<KEY>VALUEN</KEY>N</invoke> N</tool_call>

An object is a row of tags, a list is a row of ``item`` tags. N is ``]<]minimax[>[``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gristmill.text.tools import typed
from gristmill.text.tools.base import Format, Parser, Tool, Wanted, any_of, repeated
from gristmill.text.tools.json_text import MAX_NAME
from gristmill.text.tools.literal import quoted
from gristmill.text.tools.marked import close
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

_N = "]<]minimax[>["
_OPEN, _CLOSE = f"{_N}<tool_call>", f"{_N}</tool_call>"
_INVOKE, _END = f'{_N}<invoke name="', f"{_N}</invoke>"
_MAX_DEPTH = 32
_KEY = re.compile(r"[^<>/\s]+")
_Schema = Mapping[str, Any]


class _Script:
    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def __call__(self, reader: Reader) -> Script[None]:
        while (mark := (yield from reader.content_until((_OPEN,)))) is not None:
            try:
                yield from reader.space()
                yield from reader.expect(_INVOKE)
                more = True
                while more:
                    yield from self._call(reader)
                    reader.hold()
                    yield from reader.space()
                    more = yield from reader.follows(_INVOKE)
                    if not more:
                        reader.back("")
            except MalformedError:
                if reader.held:
                    reader.back(mark)
                continue
            yield from close(reader, (_CLOSE,))

    def _call(self, reader: Reader) -> Script[None]:
        name, _ = yield from reader.up_to('">', most=MAX_NAME)
        if not name or "<" in name:
            raise MalformedError
        reader.call(name)
        tool = self._tools.get(name)
        yield from _members(reader, tool.parameters if tool else {}, _END, 0)


def _members(reader: Reader, schema: _Schema, end: str, depth: int) -> Script[None]:
    """A row of tags up to ``end``, as an object."""
    before = "{"
    while True:
        yield from reader.space()
        if (yield from reader.follows(end)):
            break
        key = yield from _tag(reader)
        reader.arguments(f'{before}"{quoted(key)}": ')
        known: object = schema.get("properties")
        inner: object = cast("_Schema", known).get(key) if isinstance(known, dict) else None
        yield from _value(reader, _object(inner), f"{_N}</{key}>", depth + 1)
        before = ", "
    reader.arguments("{}" if before == "{" else "}")


def _tag(reader: Reader) -> Script[str]:
    yield from reader.expect(f"{_N}<")
    key, _ = yield from reader.up_to(">")
    if not _KEY.fullmatch(key):
        raise MalformedError
    return key


def _value(reader: Reader, schema: _Schema, end: str, depth: int) -> Script[None]:
    """What stands in a tag: more tags, or a text."""
    if depth > _MAX_DEPTH:
        raise MalformedError
    kinds = typed.kinds(schema)
    if kinds == typed.TEXT:
        reader.arguments('"')
        found = yield from reader.until((_N,), lambda text: reader.arguments(quoted(text)))
        yield from reader.expect(end[len(_N) :])
        reader.arguments('"')
        return
    parts: list[str] = []
    found = yield from reader.until((_N,), parts.append)
    if found is None:
        raise MalformedError
    rest = end[len(_N) :]
    if (yield from reader.follows(rest)):
        text = "".join(parts)
        empty = {"array": "[]", "object": "{}"}
        kind = next((empty[k] for k in ("array", "object") if k in kinds), None)
        bare = kind if kind is not None and not text.strip() else typed.as_json(text, kinds)
        reader.arguments(bare)
        return
    yield from reader.expect("<")
    key, _ = yield from reader.up_to(">")
    if not _KEY.fullmatch(key) or "".join(parts).strip():
        raise MalformedError
    if key == "item" and (not kinds or "array" in kinds):
        yield from _items(reader, _object(schema.get("items")), end, depth)
    else:
        yield from _rest(reader, schema, key, end, depth)


def _items(reader: Reader, schema: _Schema, end: str, depth: int) -> Script[None]:
    """A list, of which the first tag is read."""
    before = "["
    while True:
        reader.arguments(before)
        yield from _value(reader, schema, f"{_N}</item>", depth + 1)
        before = ", "
        yield from reader.space()
        if (yield from reader.follows(end)):
            reader.arguments("]")
            return
        if (yield from _tag(reader)) != "item":
            raise MalformedError


def _rest(reader: Reader, schema: _Schema, key: str, end: str, depth: int) -> Script[None]:
    """An object, of which the first tag is read."""
    known = _object(schema.get("properties"))
    before = "{"
    while True:
        reader.arguments(f'{before}"{quoted(key)}": ')
        yield from _value(reader, _object(known.get(key)), f"{_N}</{key}>", depth + 1)
        before = ", "
        yield from reader.space()
        if (yield from reader.follows(end)):
            reader.arguments("}")
            return
        key = yield from _tag(reader)


def _object(schema: object) -> _Schema:
    return cast("_Schema", schema if isinstance(schema, dict) else {})


# ------------------------------------------------------------------- grammar


def _grammar(wanted: Wanted) -> str:
    mark = wanted.mark(_N)
    made: list[str] = [typed.free("call_free", "", _N, wanted.mark)]
    for i, tool in enumerate(wanted.tools):
        body = _body(made, mark, f"call_{i}", tool.parameters, 0)
        head = f'{mark} "<invoke name=" {json.dumps(json.dumps(tool.name) + ">")}'
        made.append(f'call_{i}: {head} {body} {mark} "</invoke>\\n"\n')
    one = any_of([f"call_{i}" for i in range(len(wanted.tools))])
    several = repeated(one, "", wanted.parallel)
    return rf'calls: {mark} "<tool_call>\n" {several} {mark} "</tool_call>"' + "\n" + "".join(made)


def _body(made: list[str], mark: str, name: str, schema: _Schema, depth: int) -> str:
    """The Lark text of an object's members."""
    required: object = schema.get("required")
    needed = cast("list[object]", required if isinstance(required, list) else [])
    parts: list[str] = []
    for key, inner in _object(schema.get("properties")).items():
        rule = f"{name}_{len(parts)}"
        text = _written(made, mark, rule, _object(inner), json.dumps(f"</{key}>"), depth + 1)
        made.append(f"{rule}: {mark} {json.dumps(f'<{key}>')} {text}\n")
        parts.append(rule if key in needed else f"{rule}?")
    return " ".join(parts) or '""'


def _written(
    made: list[str], mark: str, rule: str, schema: _Schema, close_: str, depth: int
) -> str:
    """The Lark text of a value and the tag after it."""
    kinds = typed.kinds(schema)
    if depth <= _MAX_DEPTH and kinds == frozenset({"object"}):
        return f"{_body(made, mark, rule, schema, depth)} {mark} {close_}"
    if depth <= _MAX_DEPTH and kinds == frozenset({"array"}):
        last = json.dumps("</item>")
        inner = _object(schema.get("items"))
        item = _written(made, mark, f"{rule}_i", inner, last, depth + 1)
        return f'({mark} "<item>" {item})* {mark} {close_}'
    if kinds and "string" not in kinds and not kinds & {"object", "array"}:
        made.append(typed.json_rule(f"{rule}_value", schema))
        return f"{rule}_value {mark} {close_}"
    only = typed.choices(schema)
    if only is not None and "string" in kinds and not kinds & {"object", "array"}:
        texts = (each if isinstance(each, str) else json.dumps(each) for each in only)
        words = [json.dumps(each, ensure_ascii=False) for each in texts]
        return f"{any_of(words)} {mark} {close_}"
    return f"call_free {close_}"


def _parser(tools: Sequence[Tool], prompt: str) -> Parser:
    return ScriptParser(_Script(tools))


FORMAT = Format(
    name="minimax_m3",
    detect=lambda source: _N in source,
    parser=_parser,
    grammar=_grammar,
    marks=(_N,),
    example=f'{_OPEN}\n{_INVOKE}NAME">{_N}<KEY>VALUE{_N}</KEY>{_END}\n{_CLOSE}',
)
