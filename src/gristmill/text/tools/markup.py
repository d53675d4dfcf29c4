"""Calls written as tags, one for each argument: what the XML-like formats have in common.

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>

Such values bear no types: the tool's schema says what they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gristmill.text.tools import literal, typed
from gristmill.text.tools.base import Format, Parser, Tool, Wanted, any_of, repeated
from gristmill.text.tools.reader import SPACE, MalformedError, Reader, Script, ScriptParser

_NAME_END = frozenset(SPACE + "<>\"'={}[]()/\\,;")
_MAX_NAME = 256
_TEXTUAL = re.compile(r'\b(?:string="true"|type="string")')
_TYPED = re.compile(r'\b(?:string="false"|type="\w+")')
_CDATA = ("<![CDATA[", "]]>")


@dataclass(frozen=True)
class Markup:
    """The tags of one format.

    ``outer`` stands around a call, or around all of them (``several``). A call is ``call``, its
    name, ``call_end``, its arguments, ``close``. An argument is ``key``, its name, ``key_end``,
    then ``value`` (if that is a tag of its own), its text, ``value_end``. Where a name stands in
    double quotes, attributes may follow it: ``call_attribute``, and what ``key_attribute`` makes
    of a schema's types, when calls are written. ``lines``: a text has a line of its own. The
    ``gaps`` are the line ends that are written after ``outer``, the name, a key, an argument, and
    the call.
    """

    call: str
    call_end: str
    close: str
    key: str
    key_end: str
    value_end: str
    value: str = ""
    outer: tuple[str, str] | None = None
    several: bool = False
    lines: bool = False
    cdata: bool = False
    call_attribute: str = ""
    key_attribute: Callable[[frozenset[str]], str] = lambda kinds: ""
    gaps: tuple[str, str, str, str, str] = ("\n", "\n", "", "\n", "\n")
    between: str = "\n"
    special: tuple[str, ...] | None = None
    """Parts of the tags that may be tokens of their own; None: all of the tags may."""

    @property
    def marks(self) -> tuple[str, ...]:
        """What the parser must see even where it is a special token."""
        if self.special is not None:
            return self.special
        outer = self.outer or ()
        tags = (*outer, self.call, self.call_end, self.close, self.key, self.key_end, self.value,
                self.value_end)  # fmt: skip
        return tuple(dict.fromkeys(tag for tag in tags if len(tag) > 1))

    @property
    def openers(self) -> tuple[str, ...]:
        """What a call may begin with: models forget the outer tag."""
        first = (self.outer[0],) if self.outer else ()
        return (*first, self.call) if self.call else first


def markup(
    name: str,
    detect: Callable[[str], bool],
    tags: Markup,
    aliases: tuple[str, ...] = (),
) -> Format:
    """A format that is nothing but its tags."""

    def parser(tools: Sequence[Tool], prompt: str) -> Parser:
        return ScriptParser(_Script(tags, tools))

    return Format(
        name=name,
        detect=detect,
        parser=parser,
        grammar=lambda wanted: grammar(tags, wanted),
        marks=tags.marks,
        aliases=aliases,
        example=_example(tags),
    )


def _example(tags: Markup) -> str:
    """A call as it is written."""
    opened, named, keyed, valued, called = tags.gaps
    line = "\n" if tags.lines else ""
    quote = '"' if tags.key.endswith('"') else ""
    key = f"{tags.key}KEY{quote}{tags.key_attribute(typed.TEXT) if quote else ''}{tags.key_end}"
    argument = f"{key}{keyed}{tags.value}{line}VALUE{line}{tags.value_end}{valued}"
    quote = f'"{tags.call_attribute}' if tags.call.endswith('"') else ""
    call = f"{tags.call}NAME{quote}{tags.call_end}{named}{argument}{tags.close}"
    if tags.outer is None:
        return call
    if not tags.call:
        return tags.outer[0] + call
    return f"{tags.outer[0]}{opened}{call}{called}{tags.outer[1]}"


class _Script:
    """The script of one answer."""

    def __init__(self, tags: Markup, tools: Sequence[Tool]) -> None:
        self._tags = tags
        self._tools = {tool.name: tool for tool in tools}

    def __call__(self, reader: Reader) -> Script[None]:
        while (mark := (yield from reader.content_until(self._tags.openers))) is not None:
            yield from self._block(reader, mark)

    def _block(self, reader: Reader, mark: str) -> Script[None]:
        """The calls after an opening tag, up to the outer tag's end (which may be missing)."""
        tags = self._tags
        begun = mark
        try:
            if tags.outer and mark == tags.outer[0] and tags.call:
                yield from reader.space()
                yield from reader.expect(tags.call)
            while True:
                yield from self._one(reader)
                reader.hold()
                yield from reader.space()
                after = (tags.outer[1], tags.call) if tags.outer else (tags.call,)
                found = (yield from reader.one_of(after)) if tags.call else None
                if found is None:
                    reader.back("")
                    return
                reader.release()
                if found != tags.call:
                    return
                begun = tags.call
                reader.hold(len(begun))
        except MalformedError:
            if reader.held:
                reader.back(begun)

    def _one(self, reader: Reader) -> Script[None]:
        tags = self._tags
        name, _ = yield from self._name(reader, tags.call, tags.call_end)
        if not tags.call_end:  # then what follows tells whether this was a name
            yield from reader.space()
            first = yield from reader.one_of((tags.key, tags.close))
            if first is None:
                raise MalformedError
        else:
            first = None
        reader.call(name)
        yield from self._arguments(reader, self._tools.get(name), first)

    def _arguments(self, reader: Reader, tool: Tool | None, mark: str | None) -> Script[None]:
        tags = self._tags
        before = "{"
        try:
            while True:
                if mark is None:
                    yield from reader.space()
                    mark = yield from reader.one_of((tags.key, tags.close))
                if mark is None:
                    raise MalformedError
                if mark == tags.close:
                    break
                key, attributes = yield from self._name(reader, tags.key, tags.key_end)
                if tags.value:
                    yield from reader.space()
                    yield from reader.expect(tags.value)
                reader.arguments(f'{before}"{literal.quoted(key)}": ')
                yield from self._value(reader, typed.argument(tool, key), attributes)
                before, mark = ", ", None
        except MalformedError:
            if (yield from reader.peek()):  # something else than the answer's end
                reader.arguments("{}" if before == "{" else "}")
            raise
        reader.arguments("{}" if before == "{" else "}")

    def _name(self, reader: Reader, before: str, end: str) -> Script[tuple[str, str]]:
        """A name, and the attributes after it."""
        name = ""
        strict = before == self._tags.call  # arguments may have any name
        while len(name) < _MAX_NAME:
            char = yield from reader.peek()
            if not char or char in '"<>\n' or (strict and char in _NAME_END):
                break
            name += yield from reader.take()
        name = name.strip()
        if not name:
            raise MalformedError
        if not before.endswith('"'):
            if end:
                yield from reader.expect(end)
            return name, ""
        yield from reader.expect('"')
        attributes = ""
        while not (yield from reader.follows(end)):
            attributes += yield from reader.take()
            if len(attributes) > _MAX_NAME or attributes.endswith("\n"):
                raise MalformedError
        return name, attributes

    def _value(self, reader: Reader, schema: Mapping[str, object], about: str) -> Script[None]:
        """The text of an argument, as JSON; strings are handed on as they come."""
        tags = self._tags
        close = tags.value_end
        kinds = typed.kinds(schema)
        if _TEXTUAL.search(about):
            kinds = typed.TEXT
        elif _TYPED.search(about):
            kinds = typed.DATA
        if tags.cdata and (yield from reader.follows(_CDATA[0])):
            close, kinds = _CDATA[1], kinds or typed.TEXT
        if kinds == typed.TEXT:
            write = _Text(reader.arguments, tags.lines)
            mark = yield from reader.until((close,), write.more)
            if mark is not None:
                write.end()
        else:
            parts: list[str] = []
            mark = yield from reader.until((close,), parts.append)
            if mark is not None:
                text = "".join(parts)
                if tags.lines:
                    text = text.removeprefix("\n").removesuffix("\n")
                reader.arguments(typed.as_json(text, kinds))
        if mark is None:
            raise MalformedError
        if close != tags.value_end:
            yield from reader.space()
            yield from reader.expect(tags.value_end)


class _Text:
    """Writes a string as it comes; the line ends at its borders belong to the tags."""

    def __init__(self, emit: Callable[[str], None], lines: bool) -> None:
        self._emit = emit
        self._lines = lines
        self._first = True
        self._held = ""
        emit('"')

    def more(self, text: str) -> None:
        """More of it."""
        if self._lines and self._first and text:
            text = text.removeprefix("\n")
            self._first = False
        text = self._held + text
        self._held = "\n" if self._lines and text.endswith("\n") else ""
        self._emit(literal.quoted(text.removesuffix(self._held) if self._held else text))

    def end(self) -> None:
        """All of it has come."""
        self._emit('"')


# ------------------------------------------------------------------- grammar


def grammar(tags: Markup, wanted: Wanted) -> str:
    """A Lark grammar of at least one call; the arguments come in the schema's order."""
    writer = _Writer(tags, wanted)
    rules = [writer.call(i, tool) for i, tool in enumerate(wanted.tools)]
    one = any_of([f"call_{i}" for i in range(len(wanted.tools))])
    several = tags.several and tags.outer is not None
    row = repeated(one, _text(tags.gaps[4] if several else tags.between), wanted.parallel)
    if several and tags.outer:
        opening, closing = map(writer.tag, tags.outer)
        row = f"{opening} {_text(tags.gaps[0])} {row} {_text(tags.gaps[4])} {closing}"
    return f"calls: {row}\n" + "".join(rules)


class _Writer:
    """Writes the rules of calls."""

    def __init__(self, tags: Markup, wanted: Wanted) -> None:
        self._tags = tags
        self._mark = wanted.mark
        marks = sorted(tags.marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks)) or "(?!)")

    def tag(self, tag: str) -> str:
        """The Lark text of a tag, in which marks may be tokens."""
        parts: list[str] = []
        done = 0
        for found in self._marks.finditer(tag):
            parts += (_text(tag[done : found.start()]), self._mark(found[0]))
            done = found.end()
        return " ".join(filter(None, [*parts, _text(tag[done:])]))

    def call(self, number: int, tool: Tool) -> str:
        """The rules of one tool's call."""
        tags = self._tags
        after_open, after_name, _, _, after_call = map(_text, tags.gaps)
        quote = f'"{tags.call_attribute}' if tags.call.endswith('"') else ""
        parts = [self.tag(tags.call), _text(tool.name), self.tag(quote + tags.call_end), after_name]
        if tags.outer and not tags.several:
            parts = [self.tag(tags.outer[0]), after_open if tags.call else "", *parts]
        rules: list[str] = []
        given: object = tool.parameters.get("properties")
        required: object = tool.parameters.get("required")
        for key in cast("dict[str, object]", given) if isinstance(given, dict) else ():
            rule = f"call_{number}_{len(rules)}"
            rules.append(self._argument(rule, key, typed.argument(tool, key)))
            needed = isinstance(required, list) and key in required
            parts.append(rule if needed else f"{rule}?")
        parts.append(self.tag(tags.close))
        if tags.outer and not tags.several and tags.call:
            parts += (after_call, self.tag(tags.outer[1]))
        return f"call_{number}: {' '.join(filter(None, parts))}\n" + "".join(rules)

    def _argument(self, rule: str, key: str, schema: Mapping[str, Any]) -> str:
        tags = self._tags
        end = tags.key_end
        attribute = tags.key_attribute(typed.kinds(schema))
        if tags.key.endswith('"'):
            end = f'"{attribute}{end}'
        line = "\n" if tags.lines else ""
        parts = [self.tag(tags.key), _text(key), self.tag(end), _text(tags.gaps[2])]
        parts += (self.tag(tags.value), _text(line), f"{rule}_text", _text(tags.gaps[3]))
        told = bool(attribute)
        ended = typed.ended(f"{rule}_text", schema, line, tags.value_end, self.tag, told)
        return f"{rule}: {' '.join(filter(None, parts))}\n{ended}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
