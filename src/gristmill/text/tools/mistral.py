"""Mistral's two ways: ``[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]``, and since 2025
``[TOOL_CALLS]name[ARGS]{…}`` for every call, a ``[CALL_ID]`` before the arguments perhaps.

Its templates insist on ids of nine letters and digits.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Sequence

from gristmill.text.tools.base import Format, Parser, Tool, Wanted, choice, repeated
from gristmill.text.tools.json_text import Keys
from gristmill.text.tools.marked import Layout, Marks, marked_grammar, objects
from gristmill.text.tools.named import lark, named_call
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID = re.compile(r"[A-Za-z0-9]{9}")
_KEYS = Keys(id=("id",))


def new_id() -> str:
    """Nine letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def _head(reader: Reader) -> Script[tuple[str, str | None]]:
    name, end = yield from reader.up_to(CALL_ID, ARGS, "{")
    given = None
    if end == CALL_ID:
        given, end = yield from reader.up_to(ARGS, "{")
        given = given.strip()
    if end == "{":
        reader.untake()
    return name, given if given is not None and _ID.fullmatch(given) else None


def _script(reader: Reader) -> Script[None]:
    while (mark := (yield from reader.content_until((CALLS,)))) is not None:
        try:
            yield from reader.space()
            if (yield from reader.peek()) in ("[", "{"):
                yield from objects(reader, _KEYS, (",", ";"))
            else:
                yield from named_call(reader, _head)
        except MalformedError:
            reader.back(mark)


def _parser(_tools: Sequence[Tool], _tail: str) -> Parser:
    return ScriptParser(_script, new_id)


def _named_grammar(wanted: Wanted) -> str:
    marks = (CALLS, ARGS)
    one, rules = choice(
        wanted.tools, lambda tool: (lark((CALLS, "{name}", ARGS), marks, wanted, tool.name), "")
    )
    return "".join([*rules, f"calls: {repeated(one, '', wanted.parallel)}\n"])


def _list_grammar(wanted: Wanted) -> str:
    layout = Layout(before='{open} "["', after='"]"')
    return marked_grammar(Marks(open=(CALLS,)), layout, wanted)


def _detect(source: str) -> bool:
    return CALLS in source


def _detect_named(source: str) -> bool:
    return CALLS in source and ARGS in source


_LIST_EXAMPLE = CALLS + json.dumps([{"name": "NAME", "arguments": {"KEY": "VALUE"}}])
LIST = Format(
    "mistral",
    _detect,
    _parser,
    _list_grammar,
    (CALLS, CALL_ID, ARGS),
    example=_LIST_EXAMPLE,
)
NAMED = Format(
    "mistral_named",
    _detect_named,
    _parser,
    _named_grammar,
    (CALLS, CALL_ID, ARGS),
    aliases=("devstral", "ministral"),
    example=CALLS + "NAME" + ARGS + '{"KEY": "VALUE"}',
)
