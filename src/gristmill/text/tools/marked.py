"""Calls that are JSON objects between marks: most formats are this one with marks of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gristmill.text.tools.base import Format, Parser, Tool, Wanted, choice, repeated
from gristmill.text.tools.json_text import Keys, call
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

FENCE = ("```json", "```")
KEYS = Keys()


@dataclass(frozen=True)
class Marks:
    """How the calls lie in the text.

    ``open`` and ``close``: marks around them; the closing ones may be left out by the model. An
    opening mark is followed by an object, several objects, or an array of them.
    ``bare``: an answer that is nothing but such objects (in a code fence, perhaps) counts, too,
    if they name the request's tools.
    ``between``: what may stand between two objects besides white space.
    """

    open: tuple[str, ...]
    close: tuple[str, ...] = ()
    bare: bool = False
    between: tuple[str, ...] = (",", ";")
    keys: Keys = KEYS
    new_id: Callable[[], str] | None = None


def marked_parser(marks: Marks, tools: Sequence[Tool]) -> Parser:
    """A parser for one answer."""
    known = replace(marks.keys, known=frozenset(tool.name for tool in tools))

    def script(reader: Reader) -> Script[None]:
        if marks.bare:
            yield from _bare(reader, marks, known)
        if not marks.open:
            return
        while (mark := (yield from reader.content_until(marks.open))) is not None:
            try:
                yield from objects(reader, marks.keys, marks.between)
            except MalformedError:
                if reader.held:
                    reader.back(mark)
                    continue
            yield from close(reader, marks.close)

    return ScriptParser(script, marks.new_id)


def _bare(reader: Reader, marks: Marks, known: Keys) -> Script[None]:
    """Calls without marks, at the very beginning."""
    reader.hold()
    try:
        yield from reader.space()
        fenced = (yield from reader.one_of(FENCE)) is not None
        yield from reader.space()
        if (yield from reader.peek()) not in ("{", "["):
            raise MalformedError
        yield from objects(reader, known, marks.between)
    except MalformedError:
        reader.back("")
    else:
        yield from close(reader, (*marks.close, "```") if fenced else marks.close)


def close(reader: Reader, marks: Sequence[str]) -> Script[None]:
    """A closing mark after white space, if it is there."""
    reader.hold()
    yield from reader.space()
    if (yield from reader.one_of(marks)) is None:
        reader.back("")
    else:
        reader.release()


def objects(reader: Reader, keys: Keys, between: Sequence[str]) -> Script[None]:
    """An object, several, or an array of them. Raises MalformedError."""
    yield from reader.space()
    array = yield from reader.follows("[")
    yield from reader.space()
    while True:
        yield from call(reader, keys)
        if array:
            yield from reader.space()
            if (yield from reader.follows("]")):
                return
            yield from reader.expect(",")
            yield from reader.space()
        elif not (yield from _another(reader, between)):
            return


def _another(reader: Reader, between: Sequence[str]) -> Script[bool]:
    """Whether one more object follows; what stands before it is then taken."""
    reader.hold()
    yield from reader.space()
    yield from reader.one_of(between)
    yield from reader.space()
    more = (yield from reader.peek()) == "{"
    if more:
        reader.release()
    else:
        reader.back("")
    return more


@dataclass(frozen=True)
class Layout:
    """How a grammar has the calls written, just as the model's template writes them.

    ``before`` and ``after`` surround all calls, ``each`` one of them: Lark texts, in which
    ``{open}`` and ``{close}`` stand for the marks. ``keys`` are those of the object.
    """

    before: str = ""
    after: str = ""
    each: tuple[str, str] = ("", "")
    between: str = '", "'
    keys: tuple[str, str] = ("name", "arguments")


def marked_grammar(marks: Marks, layout: Layout, wanted: Wanted) -> str:
    """The grammar of ``calls``."""
    name, arguments = layout.keys

    def head(tool: Tool) -> str:
        return json.dumps(f'{{"{name}": {json.dumps(tool.name)}, "{arguments}": ')

    one, rules = choice(wanted.tools, lambda tool: (head(tool), '"}"'))
    open_, close = (wanted.mark(each[0]) if each else "" for each in (marks.open, marks.close))

    def told(text: str) -> str:
        return text.replace("{open}", open_).replace("{close}", close)

    each = f"{told(layout.each[0])} {one} {told(layout.each[1])}"
    rules.append(f"call_one: {each}\n")
    several = repeated("call_one", told(layout.between), wanted.parallel)
    rules.append(f"calls: {told(layout.before)} {several} {told(layout.after)}\n")
    return "".join(rules)


def marked(
    name: str,
    detect: Callable[[str], bool],
    marks: Marks,
    layout: Layout,
    aliases: tuple[str, ...] = (),
    example: str = Format.example,
) -> Format:
    """A format that is nothing but its marks."""
    return Format(
        name=name,
        detect=detect,
        parser=lambda tools, _tail: marked_parser(marks, tools),
        grammar=lambda wanted: marked_grammar(marks, layout, wanted),
        marks=(*marks.open, *marks.close),
        aliases=aliases,
        example=example,
    )
