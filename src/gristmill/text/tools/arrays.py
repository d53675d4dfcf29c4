"""Arrays of calls between marks of various families; and calls as plain JSON, without any."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.text.tools.json_text import Keys
from gristmill.text.tools.marked import Layout, Marks, marked

_ARRAY = '{"name": "NAME", "arguments": {"KEY": "VALUE"}}'


def _has(*marks: str) -> Callable[[str], bool]:
    return lambda source: all(mark in source for mark in marks)


NEMOTRON = marked(
    "nemotron",
    _has("<TOOLCALL>"),
    Marks(open=("<TOOLCALL>",), close=("</TOOLCALL>",)),
    Layout(before='{open} "["', after='"]" {close}'),
    aliases=("nemotron_json",),
    example=f"<TOOLCALL>[{_ARRAY}]</TOOLCALL>",
)
MINIMAX = marked(
    "minimax_m1",
    _has("<tool_calls>\\n{", "</tool_calls>"),
    Marks(open=("<tool_calls>",), close=("</tool_calls>",)),
    Layout(before=r'{open} "\n"', after=r'"\n" {close}', between=r'"\n"'),
    aliases=("minimax",),
    example=f"<tool_calls>\n{_ARRAY}\n</tool_calls>",
)
APRIEL = marked(
    "apriel",
    _has("<tool_calls>[", "</tool_calls>"),
    Marks(open=("<tool_calls>",), close=("</tool_calls>",)),
    Layout(before='{open} "["', after='"]" {close}'),
    aliases=("jamba", "hunyuan_a13b"),
    example=f"<tool_calls>[{_ARRAY}]</tool_calls>",
)
FIREFUNCTION = marked(
    "firefunction",
    _has("functools["),
    Marks(open=("functools",)),
    Layout(before='{open} "["', after='"]"'),
    example=f"functools[{_ARRAY}]",
)
COHERE = marked(
    "cohere",
    _has("<|START_ACTION|>"),
    Marks(
        open=("<|START_ACTION|>",),
        close=("<|END_ACTION|>",),
        keys=Keys(name=("tool_name", "name")),
    ),
    Layout(before='{open} "["', after='"]" {close}', keys=("tool_name", "parameters")),
    aliases=("command_r7b", "cohere_command3", "cohere2moe"),
    example='<|START_ACTION|>[{"tool_name": "NAME", "parameters": {"KEY": "VALUE"}}]<|END_ACTION|>',
)
COMMAND_R_PLUS = marked(
    "command_r_plus",
    _has("Action:", "```json", '"tool_name": "'),
    Marks(
        open=("Action:\n```json", "Action: ```json"),
        close=("```",),
        keys=Keys(name=("tool_name", "name")),
    ),
    Layout(before=r'{open} "\n["', after=r'"]" {close}', keys=("tool_name", "parameters")),
    aliases=("command_r",),
    example='Action:\n```json\n[{"tool_name": "NAME", "parameters": {"KEY": "VALUE"}}]\n```',
)
LONGCAT = marked(
    "longcat",
    _has("<longcat_tool_call>"),
    Marks(open=("<longcat_tool_call>",), close=("</longcat_tool_call>",)),
    Layout(each=(r'{open} "\n"', r'"\n" {close}'), between=r'"\n"'),
    example=f"<longcat_tool_call>\n{_ARRAY}\n</longcat_tool_call>",
)
JSON = marked(
    "json",
    lambda _source: False,
    Marks(open=("<tool_call>",), close=("</tool_call>",), bare=True),
    Layout(each=(r'{open} "\n"', r'"\n" {close}'), between=r'"\n"'),
    aliases=("generic", "xlam"),
)
