"""Calls that are a name between marks, and then the arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gristmill.text.tools.base import Format, Parser, Tool, Wanted, choice, repeated
from gristmill.text.tools.json_text import MAX_NAME, value
from gristmill.text.tools.marked import FENCE, close
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

Head = Callable[[Reader], Script[tuple[str, str | None]]]
"""Reads from after the mark that begins a call to its arguments; gives its name and id, if the
text has one. Raises MalformedError."""


@dataclass(frozen=True)
class Names:
    """How the calls lie in the text.

    ``begin`` begins a call (several spellings), ``end`` ends it; ``open`` and ``close`` surround
    all calls. All but ``begin`` may be left out by the model. ``written`` is how a grammar writes
    a call's head: texts, with ``{name}`` for the function's name, some of which are marks.
    """

    begin: tuple[str, ...]
    head: Head
    written: tuple[str, ...]
    end: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    close: tuple[str, ...] = ()
    fence: tuple[str, str] = ("", "")
    """What a grammar writes around the arguments."""
    between: str = ""
    inner: tuple[str, ...] = ()
    """Further marks, those of the head."""
    new_id: Callable[[], str] | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark."""
        return (*self.open, *self.begin, *self.inner, *self.end, *self.close)


def named_parser(names: Names) -> Parser:
    """A parser for one answer."""

    def script(reader: Reader) -> Script[None]:
        while (mark := (yield from reader.content_until((*names.open, *names.begin)))) is not None:
            try:
                if mark in names.open:
                    yield from reader.space()
                    if (yield from reader.one_of(names.begin)) is None:
                        raise MalformedError
                yield from named_calls(reader, names)
            except MalformedError:
                if reader.held:
                    reader.back(mark)
                    continue
            yield from close(reader, names.close)

    return ScriptParser(script, names.new_id)


def named_calls(reader: Reader, names: Names) -> Script[None]:
    """Calls, from after the first one's ``begin``. Raises MalformedError."""
    while True:
        yield from named_call(reader, names.head)
        yield from close(reader, names.end)
        reader.hold()
        yield from reader.space()
        if (yield from reader.one_of(names.begin)) is None:
            reader.back("")
            return


def named_call(reader: Reader, head: Head) -> Script[None]:
    """One call, its arguments in a code fence perhaps. Raises MalformedError."""
    name, given = yield from head(reader)
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise MalformedError
    yield from reader.space()
    fenced = (yield from reader.one_of(FENCE)) is not None
    yield from reader.space()
    if (yield from reader.peek()) != "{":
        raise MalformedError
    reader.call(name, given)
    yield from value(reader, reader.arguments)
    if fenced:
        yield from close(reader, FENCE[1:])


def lark(texts: Sequence[str], marks: Sequence[str], wanted: Wanted, name: str = "") -> str:
    """The Lark text of ``texts`` in a row, some of which are marks."""
    parts = [
        wanted.mark(text) if text in marks else json.dumps(text.replace("{name}", name))
        for text in texts
        if text
    ]
    return " ".join(parts)


def named_grammar(names: Names, wanted: Wanted) -> str:
    """The grammar of ``calls``."""

    def around(tool: Tool) -> tuple[str, str]:
        head = (names.begin[0], *names.written, names.fence[0])
        return lark(head, names.marks, wanted, tool.name), lark(
            (names.fence[1], *names.end[:1]), names.marks, wanted
        )

    one, rules = choice(wanted.tools, around)
    between = lark((names.between,), names.marks, wanted)
    several = repeated(one, between, wanted.parallel)
    first, last = (
        lark(names.open[:1], names.marks, wanted),
        lark(names.close[:1], names.marks, wanted),
    )
    return "".join([*rules, f"calls: {first} {several} {last}\n"])


def named(
    name: str,
    detect: Callable[[str], bool],
    names: Names,
    aliases: tuple[str, ...] = (),
    example: str = Format.example,
) -> Format:
    """A format that is nothing but its marks."""
    return Format(
        name=name,
        detect=detect,
        parser=lambda _tools, _tail: named_parser(names),
        grammar=lambda wanted: named_grammar(names, wanted),
        marks=names.marks,
        aliases=aliases,
        example=example,
    )
