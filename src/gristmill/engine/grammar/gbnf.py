"""Reads GBNF, llama.cpp's notation for grammars, into a small tree.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md: rules ``name ::= …``,
``"literals"``, ``[classes]``, ``.``, ``( | )``, ``* + ? {m,n}``, tokens ``<[1000]>``, ``<text>``
and ``!<text>``, comments from ``#``. A rule ends with its line, except in parentheses and after
``|``. ``root`` is where an answer begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gristmill.engine.grammar.ranges import ANY, Ranges, inverse, union
from gristmill.errors import RequestError

MOST_RULES = 1000
MOST_PARTS = 20_000
MOST_NESTED = 64
MOST_TIMES = 65_536
"""Largest number in a repetition."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """These characters, in order; none is the empty text."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token by its id, or any but it."""

    id: int
    negated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """What a rule says."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of them."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """``part`` from ``least`` to ``most`` times; None is without end."""

    part: Node
    least: int
    most: int | None


Node = Literal | Class | Token | Name | Sequence | Choice | Repeat
Rules = Mapping[str, Node]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TIMES = re.compile(r"\{[ \t]*(\d{1,9})[ \t]*(,?)[ \t]*(\d{0,9})[ \t]*\}")
_TOKEN = re.compile(r"<(?:\[(\d{1,9})\]|([^<>\n]{1,200}))>")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX = {"x": 2, "u": 4, "U": 8}
_MARKS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str, token_id: Callable[[str], int | None]) -> dict[str, Node]:
    """All rules by name. ``token_id`` finds the token that is a text.

    Raises RequestError that says what is wrong in which line.
    """
    rules = _Reader(text, token_id).rules()
    if "root" not in rules:
        raise RequestError("The grammar has no rule 'root'.")
    for name in rules:
        for used in _names(rules[name]):
            if used not in rules:
                raise RequestError(f"The grammar has no rule '{used[:60]}', which '{name}' uses.")
    return rules


def _names(node: Node) -> list[str]:
    found: list[str] = []
    stack: list[Node] = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, Name):
            found.append(each.name)
        elif isinstance(each, Repeat):
            stack.append(each.part)
        elif isinstance(each, Sequence | Choice):
            stack.extend(each.parts)
    return found


class _Reader:
    """Goes through the text once."""

    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._parts = 0
        self._token_id = token_id

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip(lines=False)
            if not self._take("::="):
                raise self._fault("'::=' is expected")
            if name in rules:
                raise self._fault(f"the rule '{name[:60]}' is there twice")
            self._skip(lines=True)
            rules[name] = self._choice(nested=False)
            if len(rules) > MOST_RULES:
                raise RequestError(f"The grammar has more than {MOST_RULES} rules.")
            if self._at < len(self._text) and self._peek() not in "\r\n":
                raise self._fault(f"{self._peek()!r} is not expected")
            self._skip(lines=True)
        return rules

    # ------------------------------------------------------------- structure

    def _choice(self, nested: bool) -> Node:
        parts = [self._sequence(nested)]
        while self._take("|"):
            self._skip(lines=True)
            parts.append(self._sequence(nested))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, nested: bool) -> Node:
        parts: list[Node] = []
        while True:
            part = self._element()
            if part is None:
                break
            self._skip(lines=nested)
            parts.append(self._repeated(part, nested))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _element(self) -> Node | None:
        char = self._peek()
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise RequestError(f"The grammar has more than {MOST_PARTS} parts.")
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return Class(ANY)
        if char in ("<", "!") and char:
            return self._token()
        return Name(self._name()) if char and _NAME.match(char) else None

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self._fault(f"parentheses are nested more than {MOST_NESTED} deep")
        self._at += 1
        self._skip(lines=True)
        inner = self._choice(nested=True)
        if not self._take(")"):
            raise self._fault("')' is expected")
        self._depth -= 1
        return inner

    def _repeated(self, part: Node, nested: bool) -> Node:
        """``part`` with the marks of repetition behind it."""
        marks = 0
        while True:
            char = self._peek()
            if char in _MARKS and char:
                least, most = _MARKS[char]
                self._at += 1
            elif char == "{":
                least, most = self._times()
            else:
                return part
            marks += 1
            if marks > MOST_NESTED:
                raise self._fault("there are too many marks of repetition")
            part = Repeat(part, least, most)
            self._skip(lines=nested)

    def _times(self) -> tuple[int, int | None]:
        found = _TIMES.match(self._text, self._at)
        if found is None or (not found[2] and found[3]):
            raise self._fault("a repetition must be {m}, {m,} or {m,n}")
        least = int(found[1])
        most = least if not found[2] else int(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self._fault(f"a repetition ends below its start ({least} … {most})")
        if max(least, most or 0) > MOST_TIMES:
            raise self._fault(f"a repetition may count to {MOST_TIMES} at most")
        self._at = found.end()
        return least, most

    # ---------------------------------------------------------------- leaves

    def _literal(self) -> Node:
        self._at += 1
        chars: list[str] = []
        while self._peek() != '"':
            chars.append(chr(self._char()))
        self._at += 1
        return Literal("".join(chars))

    def _class(self) -> Node:
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            first = last = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._char()
            if last < first:
                raise self._fault("a range in a class ends below its start")
            ranges.append((first, last))
        self._at += 1
        chosen = union(ranges)
        chosen = inverse(chosen) if negated else chosen
        if not chosen:
            raise self._fault("a class holds no character")
        return Class(chosen)

    def _token(self) -> Node:
        negated = self._take("!")
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._fault("a token must be <[id]> or <text>")
        token = int(found[1]) if found[1] else self._token_id(found[0])
        if token is None:
            raise self._fault(f"{found[0][:60]} is not a token of this model")
        self._at = found.end()
        return Token(token, negated)

    def _char(self) -> int:
        char = self._peek()
        if not char:
            raise self._fault("the grammar ends in the middle of a literal or class")
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        if kind in _HEX:
            digits = self._text[self._at : self._at + _HEX[kind]]
            if re.fullmatch(r"[0-9A-Fa-f]+", digits) and len(digits) == _HEX[kind]:
                self._at += _HEX[kind]
                code = int(digits, 16)
                if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                    return code
                raise self._fault(f"\\{kind}{digits} is no character")
        raise self._fault(f"the escape \\{kind} is not known")

    # ----------------------------------------------------------------- words

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._fault("the name of a rule is expected")
        self._at = found.end()
        return found[0]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _skip(self, lines: bool) -> None:
        """White space and comments; line ends only if a rule may go on behind them."""
        blank = " \t\r\n" if lines else " \t"
        while (char := self._peek()) and (char in blank or char == "#"):
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                self._at += 1

    def _fault(self, what: str) -> RequestError:
        line = self._text.count("\n", 0, self._at) + 1
        return RequestError(f"The grammar is faulty in line {line}: {what}.")
