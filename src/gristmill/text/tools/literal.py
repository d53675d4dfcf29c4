"""Values that are not JSON, read character by character and written as JSON text.

Two ways of writing: Python's (``'a'``, ``True``), and Gemma's (``<|"|>a<|"|>``, keys bare).
Nothing is evaluated: what none of these rules reads is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.text.tools.reader import MalformedError, Reader, Script

Emit = Callable[[str], None]

MAX_DEPTH = 64
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORD = re.compile(r"[\w.+-]*")
_HEX = frozenset("0123456789abcdefABCDEF")
_CONSTANTS = {"true": "true", "false": "false", "null": "null"}
_PYTHON = _CONSTANTS | {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
            "0": "\0", "\n": ""}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Style:
    """A way of writing. ``quotes`` begin a text and end it; ``bare``: keys need none."""

    quotes: tuple[str, ...]
    constants: dict[str, str]
    bare: bool = False


PYTHON = Style(("'''", '"""', "'", '"'), _PYTHON)
GEMMA = Style(('<|"|>', "<escape>"), _CONSTANTS, bare=True)


def quoted(text: str) -> str:
    """``text`` as it stands inside of a JSON text, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value(reader: Reader, emit: Emit, style: Style, depth: int = 0) -> Script[None]:
    """Reads a value and hands it to ``emit`` as JSON text, as it comes. MalformedError for
    anything else; what was emitted until then is a beginning of JSON text."""
    if depth > MAX_DEPTH:
        raise MalformedError
    yield from reader.space()
    char = yield from reader.peek()
    if char == "{":
        yield from mapping(reader, emit, style, depth)
    elif char == "[" or (char == "(" and style is PYTHON):
        yield from _sequence(reader, emit, style, depth)
    elif not (yield from text(reader, emit, style)):
        yield from _word(reader, emit, style)


def mapping(reader: Reader, emit: Emit, style: Style, depth: int = 0) -> Script[None]:
    """Reads ``{…}``."""
    yield from reader.expect("{")
    emit("{")
    first = True
    while True:
        yield from reader.space()
        if (yield from reader.follows("}")):
            break
        if not first:
            yield from reader.expect(",")
            yield from reader.space()
            if (yield from reader.follows("}")):
                break
            emit(", ")
        yield from _key(reader, emit, style)
        yield from reader.space()
        yield from reader.expect(":")
        emit(": ")
        yield from value(reader, emit, style, depth + 1)
        first = False
    emit("}")


def _sequence(reader: Reader, emit: Emit, style: Style, depth: int) -> Script[None]:
    closing = "]" if (yield from reader.take()) == "[" else ")"
    emit("[")
    first = True
    while True:
        yield from reader.space()
        if (yield from reader.follows(closing)):
            break
        if not first:
            yield from reader.expect(",")
            yield from reader.space()
            if (yield from reader.follows(closing)):
                break
            emit(", ")
        yield from value(reader, emit, style, depth + 1)
        first = False
    emit("]")


def _key(reader: Reader, emit: Emit, style: Style) -> Script[None]:
    if (yield from text(reader, emit, style)):
        return
    if not style.bare:
        raise MalformedError
    key = ""
    while (char := (yield from reader.peek())) and char not in ":{}[],<":
        key += yield from reader.take()
    if not key.strip():
        raise MalformedError
    emit(f'"{quoted(key.strip())}"')


def text(reader: Reader, emit: Emit, style: Style) -> Script[bool]:
    """Reads a text, if one begins here."""
    quote = yield from reader.one_of(style.quotes)
    if quote is None:
        return False
    emit('"')
    if style is PYTHON:
        yield from _python_text(reader, emit, quote)
    elif (yield from reader.until((quote,), lambda part: emit(quoted(part)))) is None:
        raise MalformedError
    emit('"')
    return True


def _digits(reader: Reader, count: int) -> Script[str]:
    code = ""
    while len(code) < count:
        char = yield from reader.take()
        if char not in _HEX:
            raise MalformedError
        code += char
    return code


def _python_text(reader: Reader, emit: Emit, quote: str) -> Script[None]:
    while True:
        if (yield from reader.follows(quote)):
            return
        char = yield from reader.take()
        if char != "\\":
            emit(quoted(char))
            continue
        char = yield from reader.take()
        width = {"x": 2, "u": 4, "U": 8}.get(char)
        if width is None:
            emit(quoted(_ESCAPES.get(char, char if char in "\\'\"" else "\\" + char)))
            continue
        code = int((yield from _digits(reader, width)), 16)
        if code > 0x10FFFF:
            raise MalformedError
        # Half of a pair stays an escape: the other half may follow.
        emit(f"\\u{code:04x}" if 0xD800 <= code < 0xE000 else quoted(chr(code)))


def _word(reader: Reader, emit: Emit, style: Style) -> Script[None]:
    """A number or a constant, handed on when it is whole."""
    word = ""
    while len(word) < 512:
        word += reader.run(_WORD)
        char = yield from reader.peek()
        if not char or not _WORD.fullmatch(char):
            break
    known = style.constants.get(word) or number(word)
    if known is None:
        raise MalformedError
    emit(known)


def number(word: str) -> str | None:
    """A number as JSON has it, or None. Python's ``1_000``, ``+1``, ``.5`` and ``1.`` are
    brought into form."""
    word = word.replace("_", "").removeprefix("+")
    if _NUMBER.fullmatch(word):
        return word
    mended = re.sub(r"^(-?)\.", r"\g<1>0.", re.sub(r"\.(?=$|[eE])", ".0", word))
    return mended if _NUMBER.fullmatch(mended) else None


def parse(written: str, style: Style) -> str | None:
    """The whole of ``written`` as JSON text, or None where it is no value."""
    reader, made = Reader(), list[str]()
    reader.feed(written)
    reader.end()
    script = _whole(reader, made.append, style)
    try:
        next(script)
    except StopIteration:
        return "".join(made)
    except MalformedError:
        pass
    return None


def _whole(reader: Reader, emit: Emit, style: Style) -> Script[None]:
    yield from value(reader, emit, style)
    yield from reader.space()
    if (yield from reader.peek()):
        raise MalformedError
