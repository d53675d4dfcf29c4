"""Calls as messages or functions of their own: GigaChat 3, Solar Open, Functionary."""

from __future__ import annotations

from gristmill.text.tools.marked import Layout, Marks, marked
from gristmill.text.tools.named import Names, named
from gristmill.text.tools.reader import Reader, Script

_BEGIN, _NAME = "<|tool_call:begin|>", "<|tool_call:name|>"
_ARGUMENTS, _END = "<|tool_call:args|>", "<|tool_call:end|>"

GIGACHAT = marked(
    "gigachat3",
    lambda source: "<|role_sep|>" in source and "function call" in source,
    Marks(open=("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n",
                "function call<|role_sep|>\n"), close=("<|message_sep|>",)),
    Layout(each=("{open}", "")),
    example='<|function_call|>{"name": "NAME", "arguments": {"KEY": "VALUE"}}',
)  # fmt: skip


def _solar(reader: Reader) -> Script[tuple[str, str | None]]:
    given, _ = yield from reader.up_to(_NAME)
    name, _ = yield from reader.up_to(_ARGUMENTS)
    return name, given.strip() or None


SOLAR = named(
    "solar_open",
    lambda source: _BEGIN in source,
    Names(
        begin=(_BEGIN,),
        head=_solar,
        written=("call00000", _NAME, "{name}", _ARGUMENTS),
        end=(_END,),
        open=("<|tool_calls|>",),
        close=("<|calls|>",),
        inner=(_NAME, _ARGUMENTS),
    ),
    example=f'<|tool_calls|>{_BEGIN}ID{_NAME}NAME{_ARGUMENTS}{{"KEY": "VALUE"}}{_END}',
)


def _function(reader: Reader) -> Script[tuple[str, str | None]]:
    name, _ = yield from reader.up_to(">")
    return name, None


FUNCTIONARY = named(
    "functionary_v3_1",
    lambda source: "<function=" in source and "<parameter=" not in source,
    Names(
        begin=("<function=",),
        head=_function,
        written=("{name}>",),
        end=("</function>",),
    ),
    aliases=("functionary",),
    example='<function=NAME>{"KEY": "VALUE"}</function>',
)
