"""Structural tags in llguidance's language: free text with stretches that are held to a form.

Two notations are read. The older one is ``{"structures": [{"begin", "schema", "end"}],
"triggers": [...]}``; the newer ``{"format": …}`` is a tree of formats, as xgrammar and vLLM have
it (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html). Any text can stand at the end, or
in a tag; elsewhere it could not be told where it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import cast

from llguidance import regex_to_lark

from gristmill.engine.grammar.schemas import WHITESPACE, check_schema, parse
from gristmill.errors import RequestError

MOST_NESTED = 32
MOST_FORMATS = 500

_MARK = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
_Given = Mapping[str, object]


def structural_tag(text: str, special: Callable[[str], int | None]) -> str:
    """Lark for a structural tag. ``special`` finds the control token that is a text.

    Raises RequestError for what is none, or has a format that is not known.
    """
    given = _object(parse(text, "The structural tag"), "The structural tag")
    form = given.get("format")
    return _Writer(special).write(_older(given) if form is None else form)


def _older(given: _Given) -> object:
    tags: list[object] = []
    for item in _list(given, "structures"):
        each = _object(item, "A structure")
        content = {"type": "json_schema", "json_schema": each.get("schema", True)}
        tags.append({"begin": each.get("begin"), "content": content, "end": each.get("end")})
    return {"type": "triggered_tags", "triggers": given.get("triggers"), "tags": tags}


class _Writer:
    """Writes a rule for each format."""

    def __init__(self, special: Callable[[str], int | None]) -> None:
        self._special = special
        self._lines = ["TEXT: /(.|\\n)*/"]
        self._depth = 0

    def write(self, form: object) -> str:
        start = self._format(form, last=True)
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def _format(self, form: object, last: bool) -> str:
        """The rule of a format. ``last``: nothing stands behind it."""
        given = _object(form, "A format")
        self._depth += 1
        if self._depth > MOST_NESTED or len(self._lines) > MOST_FORMATS:
            raise RequestError("The structural tag is too large or too deeply nested.")
        kind = given.get("type")
        writer = _KINDS.get(kind) if isinstance(kind, str) else None
        if writer is None:
            raise RequestError(
                f"A structural tag has the format {str(kind)[:60]!r}; known are "
                f"{', '.join(_KINDS)}."
            )
        body = writer(self, given, last)
        self._depth -= 1
        return self._rule(body)

    def constant(self, given: _Given, last: bool) -> str:
        del last
        return self._text(_string(given, "value"))

    def schema(self, given: _Given, last: bool) -> str:
        del last
        schema = given.get("json_schema", True)
        check_schema(schema)
        fields = cast("dict[str, object]", schema) if isinstance(schema, dict) else {}
        options = {"whitespace_pattern": WHITESPACE, "lenient": False}
        return "%json " + json.dumps({**fields, "x-guidance": options})

    def regex(self, given: _Given, last: bool) -> str:
        del last
        pattern = _string(given, "pattern")
        if not pattern:
            return '""'
        return self._rule(f"/{regex_to_lark(pattern, '')}/", lexeme=True)

    def any_text(self, given: _Given, last: bool) -> str:
        del given
        if not last:
            raise RequestError("In a structural tag, 'any_text' must be the end, or fill a 'tag'.")
        return "TEXT"

    def sequence(self, given: _Given, last: bool) -> str:
        elements = _list(given, "elements")
        final = len(elements) - 1
        return " ".join(self._format(e, last and i == final) for i, e in enumerate(elements))

    def choice(self, given: _Given, last: bool) -> str:
        return " | ".join(self._format(each, last) for each in _list(given, "elements"))

    def tag(self, given: _Given, last: bool) -> str:
        return f"{self._text(_string(given, 'begin'))} {self._inside(given, last)}"

    def triggered(self, given: _Given, last: bool) -> str:
        if not last:
            raise RequestError("In a structural tag, 'triggered_tags' must be the end.")
        tags = [_object(tag, "A tag") for tag in _list(given, "tags")]
        begun: dict[str, list[str]] = {}
        triggers = [t for t in _list(given, "triggers") if isinstance(t, str) and t]
        for tag in tags:
            begin = _string(tag, "begin")
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                raise RequestError(f"The tag {begin[:60]!r} begins with none of the triggers.")
            rest = f"{self._text(begin[len(trigger) :])} {self._inside(tag, last=False)}"
            begun.setdefault(trigger, []).append(rest)
        if not begun:
            raise RequestError("A structural tag needs at least one tag.")
        each = [f"{self._until([t])} ({' | '.join(rests)})" for t, rests in begun.items()]
        one = self._rule(" | ".join(each))
        least = bool(given.get("at_least_one"))
        if given.get("stop_after_first"):
            return one if least else f"{one} | TEXT"
        return f"{one}{'+' if least else '*'} TEXT"

    def separated(self, given: _Given, last: bool) -> str:
        del last
        tags = [self._rule(self.tag(_object(t, "A tag"), False)) for t in _list(given, "tags")]
        one = self._rule(" | ".join(tags))
        more = f"({self._text(_string(given, 'separator'))} {one})*"
        body = one if given.get("stop_after_first") else f"{one} {more}"
        return body if given.get("at_least_one") else f"({body})?"

    # --------------------------------------------------------------- pieces

    def _inside(self, tag: _Given, last: bool) -> str:
        """A tag's content and its end."""
        end = tag.get("end", "")
        ends = cast("list[object]", end) if isinstance(end, list) else [end]
        if not ends or not all(isinstance(each, str) for each in ends):
            raise RequestError("A tag's 'end' must be a string or a list of strings.")
        texts = [str(each) for each in ends]
        content = _object(tag.get("content"), "A tag's 'content'")
        if content.get("type") == "any_text" and all(texts):
            return self._until(texts)
        either = " | ".join(self._text(each) for each in texts)
        return f"{self._format(content, last and texts == [''])} ({either})"

    def _until(self, ends: list[str]) -> str:
        """Any text, up to the first of these."""
        tokens = [self._special(end) for end in ends]
        if all(token is not None for token in tokens):
            return f"TEXT ({' | '.join(f'<[{token}]>' for token in tokens)})"
        either = " | ".join(map(_quoted, ends))
        return self._rule(f"TEXT ({either})", mark="[lazy]")

    def _text(self, text: str) -> str:
        """A text, its control tokens as such."""
        parts: list[str] = []
        plain = ""
        for part in _MARK.split(text):
            token = self._special(part) if _MARK.fullmatch(part) else None
            if token is None:
                plain += part
                continue
            parts += [_quoted(plain)] if plain else []
            parts.append(f"<[{token}]>")
            plain = ""
        parts += [_quoted(plain)] if plain else []
        return " ".join(parts) or '""'

    def _rule(self, body: str, *, mark: str = "", lexeme: bool = False) -> str:
        name = f"{'F' if lexeme else 'f'}{len(self._lines)}"
        self._lines.append(f"{name}{mark}: {body}")
        return name


_KINDS: Mapping[str, Callable[[_Writer, _Given, bool], str]] = {
    "const_string": _Writer.constant,
    "json_schema": _Writer.schema,
    "regex": _Writer.regex,
    "any_text": _Writer.any_text,
    "sequence": _Writer.sequence,
    "or": _Writer.choice,
    "tag": _Writer.tag,
    "triggered_tags": _Writer.triggered,
    "tags_with_separator": _Writer.separated,
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object(value: object, what: str) -> _Given:
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be an object.")
    return cast("_Given", value)


def _list(given: _Given, name: str) -> list[object]:
    value = given.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"In a structural tag, {name!r} must be a list that is not empty.")
    return cast("list[object]", value)


def _string(given: _Given, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise RequestError(f"In a structural tag, {name!r} must be a string.")
    return value
