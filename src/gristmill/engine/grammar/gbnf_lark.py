"""Writes a GBNF grammar in llguidance's language.

GBNF knows characters only; llguidance reads an answer as *lexemes*, each the longest run that
its regular expression matches, and parses those. A part of a grammar becomes one lexeme where
that changes nothing: where no character that could follow it could also lengthen it. What is
left becomes lexemes of single characters. A grammar without recursion is one lexeme as a whole,
so it is matched exactly; else a text that two lexemes of one place could begin is read as the
longer one, and never as anything that the grammar does not allow.

``can_grow`` and ``follow`` are found by the usual fixpoints; both may be too large, never too
small.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.engine.grammar.gbnf import (
    Choice,
    Class,
    Literal,
    Name,
    Node,
    Repeat,
    Rules,
    Sequence,
    Token,
    parse,
)
from gristmill.engine.grammar.ranges import NONE, Ranges, meet, pattern, union


def gbnf_to_lark(text: str, token_id: Callable[[str], int | None]) -> str:
    """The grammar in Lark. Raises RequestError that says what is wrong in which line."""
    return _Writer(parse(text, token_id)).write()


@dataclass(frozen=True, slots=True)
class _Facts:
    """``grow``: what could lengthen a match; ``chars``: all that occurs. ``regular``: neither
    recursion nor tokens in it."""

    empty: bool
    first: Ranges
    grow: Ranges
    chars: Ranges
    regular: bool


_NOTHING = _Facts(False, NONE, NONE, NONE, False)


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._order = _bottom_up(rules)
        self._facts: dict[str, _Facts] = {}
        self._find_facts()
        self._known: dict[Node, _Facts] = {}
        self._follow: dict[str, Ranges] = dict.fromkeys(rules, NONE)
        self._find_follow()
        self._names = {name: f"r{i}_{_plain(name)}" for i, name in enumerate(rules)}
        self._written: dict[str, Callable[[], str]] = {}
        self._waiting: deque[str] = deque()
        self._extra = 0

    def write(self) -> str:
        """Only what ``root`` needs, ``root`` first."""
        lines = [f"start: {self._use('root')}"]
        while self._waiting:
            name = self._waiting.popleft()
            lines.append(f"{name}: {self._written[name]()}")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------- analysis

    def _find_facts(self) -> None:
        """From the leaves up; rules that need themselves take some rounds more."""
        cyclic = _recursive(self._rules)
        changed = True
        while changed:
            changed = False
            for name in self._order:
                found = self._look(self._rules[name])
                if name in cyclic:
                    found = _Facts(found.empty, found.first, found.chars, found.chars, False)
                if found != self._facts.get(name):
                    self._facts[name] = found
                    changed = True

    def _look(self, node: Node) -> _Facts:
        if isinstance(node, Literal):
            chars = union((ord(c), ord(c)) for c in node.text)
            first = union((ord(c), ord(c)) for c in node.text[:1])
            return _Facts(not node.text, first, NONE, chars, True)
        if isinstance(node, Class):
            return _Facts(False, node.ranges, NONE, node.ranges, True)
        if isinstance(node, Token):
            return _Facts(False, NONE, NONE, NONE, False)
        if isinstance(node, Name):
            return self._facts.get(node.name, _NOTHING)
        if isinstance(node, Repeat):
            return _repeated(self._look(node.part), node)
        parts = [self._look(part) for part in node.parts]
        return _chosen(parts) if isinstance(node, Choice) else _in_turn(parts)

    def _of(self, node: Node) -> _Facts:
        """``_look``, once the rules' facts are certain."""
        if node not in self._known:
            self._known[node] = self._look(node)
        return self._known[node]

    def _find_follow(self) -> None:
        waiting = list(reversed(self._order))
        queued = set(waiting)
        while waiting:
            name = waiting.pop(0)
            queued.discard(name)
            for used, after in self._after(self._rules[name], self._follow[name]):
                grown = union((*self._follow[used], *after))
                if grown != self._follow[used]:
                    self._follow[used] = grown
                    if used not in queued:
                        queued.add(used)
                        waiting.append(used)

    def _after(self, node: Node, follow: Ranges) -> list[tuple[str, Ranges]]:
        """Every rule that is used, and what may come after it there."""
        if isinstance(node, Name):
            return [(node.name, follow)]
        if isinstance(node, Repeat):
            return self._after(node.part, self._within(node, follow))
        if isinstance(node, Choice):
            return [each for part in node.parts for each in self._after(part, follow)]
        if isinstance(node, Sequence):
            pairs = zip(node.parts, self._behind(node, follow), strict=True)
            return [each for part, after in pairs for each in self._after(part, after)]
        return []

    def _within(self, node: Repeat, follow: Ranges) -> Ranges:
        """What may come after one turn of a repetition."""
        once = node.most is not None and node.most <= 1
        return follow if once else union((*follow, *self._of(node.part).first))

    def _behind(self, node: Sequence, follow: Ranges) -> list[Ranges]:
        """What may come after each part of a sequence."""
        found: list[Ranges] = []
        for part in reversed(node.parts):
            found.append(follow)
            facts = self._of(part)
            follow = union((*facts.first, *follow)) if facts.empty else facts.first
        return found[::-1]

    def _safe(self, node: Node, follow: Ranges) -> bool:
        facts = self._of(node)
        return facts.regular and not meet(facts.grow, follow)

    def _is_lexeme(self, name: str) -> bool:
        follow = NONE if name == "root" and self._facts[name].regular else self._follow[name]
        return self._safe(self._rules[name], follow)

    # -------------------------------------------------------------- writing

    def _use(self, name: str) -> str:
        """A rule as the parser's rules name it; it is written when its turn comes."""
        body = self._rules[name]
        if self._is_lexeme(name):
            return self._define(self._names[name].upper(), lambda: self._lexeme(body))
        return self._define(self._names[name], lambda: self._rule(body, self._follow[name]))

    def _define(self, name: str, body: Callable[[], str]) -> str:
        if name not in self._written:
            self._written[name] = body
            self._waiting.append(name)
        return name

    def _rule(self, node: Node, follow: Ranges, apart: bool = False) -> str:
        """A node of a rule of the parser. ``apart``: every character is a lexeme of its own."""
        if isinstance(node, Name):
            return self._use(node.name)
        if isinstance(node, Token):
            return f"<[{'^' if node.negated else ''}{node.id}]>"
        if isinstance(node, Literal) and apart:
            return " ".join(_text(char) for char in node.text) or '""'
        if isinstance(node, Literal | Class):
            return self._lexeme(node)
        if self._safe(node, follow):
            return self._named(node)
        apart = apart or self._of(node).regular
        if isinstance(node, Repeat):
            inner = self._rule(node.part, self._within(node, follow), apart)
            return f"({inner}){_times(node)}"
        if isinstance(node, Choice):
            parts = [self._rule(part, follow, apart) for part in node.parts]
            return f"({' | '.join(parts)})"
        pairs = zip(node.parts, self._behind(node, follow), strict=True)
        return " ".join(self._rule(part, after, apart) for part, after in pairs) or '""'

    def _lexeme(self, node: Node) -> str:
        """A node of a regular expression."""
        if isinstance(node, Literal):
            return _text(node.text)
        if isinstance(node, Class):
            return f"/{pattern(node.ranges)}/"
        if isinstance(node, Name):
            return self._part(node.name)
        if isinstance(node, Repeat):
            return f"({self._lexeme(node.part)}){_times(node)}"
        if isinstance(node, Choice):
            return "(" + " | ".join(map(self._lexeme, node.parts)) + ")"
        assert isinstance(node, Sequence)
        return " ".join(map(self._lexeme, node.parts)) or '""'

    def _part(self, name: str) -> str:
        """A rule as a part of a lexeme, which it need not be itself."""
        body = self._rules[name]
        return self._define(self._names[name].upper(), lambda: self._lexeme(body))

    def _named(self, node: Node) -> str:
        self._extra += 1
        return self._define(f"X{self._extra}", lambda: self._lexeme(node))


def _repeated(part: _Facts, node: Repeat) -> _Facts:
    empty = part.empty or node.least == 0
    once = node.most is not None and node.most <= 1
    exact = node.least == node.most
    grow = part.grow if once or exact else union((*part.grow, *part.first))
    if not once and meet(part.grow, part.first):
        grow = part.chars
    return _Facts(empty, part.first, grow, part.chars, part.regular)


def _chosen(parts: list[_Facts]) -> _Facts:
    chars = union(each for part in parts for each in part.chars)
    first: Ranges = NONE
    grow = union(each for part in parts for each in part.grow)
    for part in parts:
        if meet(first, part.first):
            grow = chars  # one may begin like another, and go on
        first = union((*first, *part.first))
    empty = any(part.empty for part in parts)
    return _Facts(empty, first, grow, chars, all(part.regular for part in parts))


def _in_turn(parts: list[_Facts]) -> _Facts:
    chars = union(each for part in parts for each in part.chars)
    first: Ranges = NONE
    grow: Ranges = NONE
    empty = True
    for part in parts:
        clash = meet(grow, part.first)
        first = union((*first, *part.first)) if empty else first
        if clash:
            grow = chars  # where one part ends and the next begins is not certain
        elif part.empty:
            grow = union((*grow, *part.grow, *part.first))
        else:
            grow = part.grow
        empty = empty and part.empty
    return _Facts(empty, first, grow, chars, all(part.regular for part in parts))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _times(node: Repeat) -> str:
    short: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (node.least, node.most) in short:
        return short[node.least, node.most]
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _names_in(node: Node) -> list[str]:
    if isinstance(node, Name):
        return [node.name]
    if isinstance(node, Repeat):
        return _names_in(node.part)
    if isinstance(node, Sequence | Choice):
        return [name for part in node.parts for name in _names_in(part)]
    return []


def _bottom_up(rules: Rules) -> list[str]:
    """Rules so that those that others use come first, as far as there is no circle."""
    order: list[str] = []
    seen: set[str] = set()
    for root in rules:
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            name, done = stack.pop()
            if done:
                order.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((used, False) for used in _names_in(rules[name]))
    return order


def _recursive(rules: Rules) -> set[str]:
    """Rules that cannot be written out: they use themselves, or one that does."""
    safe: set[str] = set()
    users: dict[str, list[str]] = {name: [] for name in rules}
    open_: dict[str, int] = {}
    for name, body in rules.items():
        used = set(_names_in(body))
        open_[name] = len(used)
        for each in used:
            users[each].append(name)
    ready = [name for name, count in open_.items() if count == 0]
    while ready:
        name = ready.pop()
        safe.add(name)
        for user in users[name]:
            open_[user] -= 1
            if open_[user] == 0:
                ready.append(user)
    return set(rules) - safe
