"""Kimi K2: every call has an id that names its function, ``functions.NAME:0``.

Its template wants that id back with the tool's answer, so it is the call's id here, too.
"""

from __future__ import annotations

from gristmill.text.tools.named import Names, named
from gristmill.text.tools.reader import Reader, Script

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEGIN, _END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"


def _head(reader: Reader) -> Script[tuple[str, str | None]]:
    text, _ = yield from reader.up_to(_ARGUMENTS)
    given = text.strip()
    name, colon, number = given.removeprefix("functions.").rpartition(":")
    if not colon or not number.isdigit():
        return given.removeprefix("functions."), None
    return name, given


FORMAT = named(
    "kimi_k2",
    lambda source: _OPEN in source,
    Names(
        begin=(_BEGIN,),
        head=_head,
        written=("functions.{name}:0", _ARGUMENTS),
        end=(_END,),
        open=(_OPEN,),
        close=(_CLOSE,),
        inner=(_ARGUMENTS,),
    ),
    aliases=("kimi",),
    example=f'{_OPEN}{_BEGIN}functions.NAME:0{_ARGUMENTS}{{"KEY": "VALUE"}}{_END}{_CLOSE}',
)
