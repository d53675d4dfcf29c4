"""JSON as it comes: values read character by character, calls told before they are whole.

What is handed on is always the beginning of valid JSON. Slips that models make and whose meaning
is plain are put right on the way: raw control characters and unknown escapes in strings, Python's
``True``, ``False`` and ``None``, a comma before a closing bracket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.text.tools.reader import MalformedError, Reader, Script

MAX_DEPTH = 100
MAX_NAME = 256
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")

Emit = Callable[[str], None]


def value(reader: Reader, emit: Emit, depth: int = 0) -> Script[None]:
    """Reads one value, and hands its text to ``emit``, in pieces. Raises MalformedError."""
    first = yield from reader.peek()
    if first in ("{", "["):
        if depth >= MAX_DEPTH:
            raise MalformedError
        yield from _container(reader, emit, first, depth)
    elif first == '"':
        yield from _string(reader, emit)
    else:
        yield from _scalar(reader, emit)


def _container(reader: Reader, emit: Emit, first: str, depth: int) -> Script[None]:
    last = "}" if first == "{" else "]"
    yield from reader.expect(first)
    emit(first)
    comma = ""
    while True:
        blank = yield from _space(reader)
        if (yield from reader.follows(last)):
            emit(blank + last)
            return
        emit(comma + blank)
        if first == "{":
            yield from _string(reader, emit)
            blank = yield from _space(reader)
            yield from reader.expect(":")
            emit(blank + ":" + (yield from _space(reader)))
        yield from value(reader, emit, depth + 1)
        blank = yield from _space(reader)
        if (yield from reader.follows(last)):
            emit(blank + last)
            return
        yield from reader.expect(",")
        comma = blank + ","


def _space(reader: Reader) -> Script[str]:
    parts: list[str] = []
    while (char := (yield from reader.peek())) and char in " \t\r\n":
        parts.append((yield from reader.take()))
    return "".join(parts)


def _string(reader: Reader, emit: Emit) -> Script[None]:
    yield from reader.expect('"')
    emit('"')
    while True:
        emit(reader.run(_PLAIN))
        char = yield from reader.peek()
        if char == "\\":
            yield from _escape(reader, emit)
            continue
        if char and not char < " " and char != '"':
            continue  # more of the text has come
        yield from reader.take()
        if char == '"':
            emit('"')
            return
        emit(json.dumps(char)[1:-1])


def _escape(reader: Reader, emit: Emit) -> Script[None]:
    """An escape; a backslash that begins none stands for itself."""
    yield from reader.expect("\\")
    char = yield from reader.peek()
    if char in _ESCAPES and char:
        yield from reader.take()
        emit("\\" + char)
    elif char == "u":
        yield from reader.take()
        digits = ""
        while len(digits) < 4 and (yield from reader.peek()) in _HEX:
            digits += yield from reader.take()
        emit(("\\u" if len(digits) == 4 else "\\\\u") + digits)
    elif char == "'":
        pass
    else:
        emit("\\\\")


def _scalar(reader: Reader, emit: Emit) -> Script[None]:
    """A number or a word: nothing is handed on before it is whole."""
    parts: list[str] = []
    while (yield from reader.peek()):
        more = reader.run(_SCALAR)
        if not more:
            break
        parts.append(more)
        if sum(map(len, parts)) > 4096:
            raise MalformedError
    text = "".join(parts)
    word = _WORDS.get(text)
    if word is None and not _NUMBER.fullmatch(text):
        raise MalformedError
    if not (yield from reader.peek()):
        raise MalformedError  # the answer ends here: there may have been more of it
    emit(word or text)


def string(reader: Reader) -> Script[str]:
    """Reads a string, and gives what it says. Raises MalformedError."""
    parts: list[str] = []
    yield from _string(reader, parts.append)
    return json.loads("".join(parts))


@dataclass(frozen=True)
class Keys:
    """The keys of a call written as an object.

    ``known``: names that a call must have to be one, and then it must have arguments, too, and
    no strange keys; None where the marks around it leave no doubt.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    inner: tuple[str, ...] = ("function",)
    """Keys under which the call may lie as an object of its own (OpenAI's form)."""
    id: tuple[str, ...] = ()
    known: frozenset[str] | None = None

    def has(self, key: str) -> bool:
        """Whether a call may have this key."""
        return key in (*self.name, *self.arguments, *self.inner, *self.id, "id", "type")


@dataclass
class _Call:
    keys: Keys
    name: str | None = None
    id: str | None = None
    told: bool = False
    waiting: list[str] = field(default_factory=list[str])
    """Arguments that came before the name."""
    complete: bool = False


def call(reader: Reader, keys: Keys) -> Script[None]:
    """Reads a call that is an object, and tells of it as soon as its name and the beginning of its
    arguments are there. Raises MalformedError."""
    found = _Call(keys)
    yield from _members(reader, found, 0)
    if found.name is None or (keys.known is not None and not found.complete):
        raise MalformedError
    if not found.told:
        reader.call(found.name, found.id)
        reader.arguments("".join(found.waiting) or "{}")


def _members(reader: Reader, found: _Call, depth: int) -> Script[None]:
    yield from reader.expect("{")
    while True:
        yield from reader.space()
        if (yield from reader.follows("}")):
            return
        key = yield from string(reader)
        if found.keys.known is not None and not found.keys.has(key):
            raise MalformedError  # an answer in JSON, which nobody wants to wait for
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        yield from _member(reader, found, key, depth)
        yield from reader.space()
        if (yield from reader.follows("}")):
            return
        yield from reader.expect(",")


def _member(reader: Reader, found: _Call, key: str, depth: int) -> Script[None]:
    keys = found.keys
    first = yield from reader.peek()
    if key in keys.inner and first == "{" and depth == 0:
        yield from _members(reader, found, 1)
    elif key in keys.name and first == '"' and found.name is None:
        name = yield from string(reader)
        if keys.known is not None and name not in keys.known:
            raise MalformedError
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise MalformedError
        found.name = name
    elif key in keys.arguments and not found.complete:
        yield from _arguments(reader, found, first)
        found.complete = True
    elif key in keys.id and first == '"':
        found.id = (yield from string(reader))[:MAX_NAME] or None
    else:
        yield from value(reader, _ignore)


def _arguments(reader: Reader, found: _Call, first: str) -> Script[None]:
    if first == "{":
        emit = found.waiting.append
        if found.name is not None:
            reader.call(found.name, found.id)
            found.told, emit = True, reader.arguments
        yield from value(reader, emit)
    elif first == '"':
        found.waiting.append(as_object((yield from string(reader))))
    else:
        yield from reader.expect("null")


def as_object(text: str) -> str:
    """Arguments that were written as a string of JSON. Raises MalformedError."""
    if not text.strip():
        return "{}"
    try:
        known = isinstance(json.loads(text, strict=False), dict)
    except (ValueError, RecursionError):
        known = False
    if not known:
        raise MalformedError
    return text


def _ignore(text: str) -> None:
    """Takes what nobody wants to know."""
