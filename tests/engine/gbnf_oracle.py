"""GBNF as it is defined, character by character: all ends of all matches. Slow and plain."""

from __future__ import annotations

import random
from collections.abc import Mapping

from gristmill.engine.grammar import gbnf
from gristmill.engine.grammar.ranges import Ranges


def matches(rules: Mapping[str, gbnf.Node], text: str) -> bool:
    """Whether ``root`` can be the whole text. The rules must not be left-recursive."""
    return len(text) in _Matcher(rules, text).ends(rules["root"], 0)


class _Matcher:
    def __init__(self, rules: Mapping[str, gbnf.Node], text: str) -> None:
        self.rules = rules
        self.text = text
        self.known: dict[tuple[gbnf.Node, int], frozenset[int]] = {}

    def ends(self, node: gbnf.Node, at: int) -> frozenset[int]:
        key = (node, at)
        if key not in self.known:
            self.known[key] = frozenset(self._ends(node, at))
        return self.known[key]

    def _ends(self, node: gbnf.Node, at: int) -> set[int]:
        if isinstance(node, gbnf.Literal):
            return {at + len(node.text)} if self.text.startswith(node.text, at) else set()
        if isinstance(node, gbnf.Class):
            here = self.text[at : at + 1]
            return {at + 1} if here and _holds(node.ranges, ord(here)) else set()
        if isinstance(node, gbnf.Name):
            return set(self.ends(self.rules[node.name], at))
        if isinstance(node, gbnf.Choice):
            return {end for part in node.parts for end in self.ends(part, at)}
        if isinstance(node, gbnf.Sequence):
            now = {at}
            for part in node.parts:
                now = {end for start in now for end in self.ends(part, start)}
            return now
        assert isinstance(node, gbnf.Repeat)
        found: set[int] = {at} if node.least == 0 else set()
        now, count, seen = {at}, 0, {at}
        while now and (node.most is None or count < node.most):
            count += 1
            now = {end for start in now for end in self.ends(node.part, start)}
            if count >= node.least:
                found |= now
                now = now - seen if count > node.least else now
            seen |= now
        return found


def _holds(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


class Writer:
    """Random texts of a grammar, short ones more often. ``spent`` characters end recursion."""

    def __init__(self, rules: Mapping[str, gbnf.Node], seed: int) -> None:
        self.rules = rules
        self.random = random.Random(seed)

    def text(self) -> str | None:
        """A text of ``root``; None if it has become too long."""
        self.steps = 0
        try:
            return self._write(self.rules["root"], 0)
        except RecursionError:
            return None

    def _write(self, node: gbnf.Node, depth: int) -> str:
        self.steps += 1
        if self.steps > 600 or depth > 60:
            raise RecursionError
        if isinstance(node, gbnf.Literal):
            return node.text
        if isinstance(node, gbnf.Class):
            first, last = self.random.choice(node.ranges)
            return chr(self.random.randint(first, min(last, first + 90)))
        if isinstance(node, gbnf.Name):
            return self._write(self.rules[node.name], depth + 1)
        if isinstance(node, gbnf.Choice):
            return self._write(self.random.choice(node.parts), depth + 1)
        if isinstance(node, gbnf.Sequence):
            return "".join(self._write(part, depth + 1) for part in node.parts)
        assert isinstance(node, gbnf.Repeat)
        most = node.least + 3 if node.most is None else min(node.most, node.least + 3)
        count = self.random.choice((node.least, self.random.randint(node.least, most)))
        return "".join(self._write(node.part, depth + 1) for _ in range(count))
