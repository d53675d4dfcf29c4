"""Qwen3-Coder and its kin (Qwen 3.5, Nemotron 3, Step 3.5): a line for every argument's value.

<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
"""

from __future__ import annotations

from gristmill.text.tools.markup import Markup, markup


def _detect(source: str) -> bool:
    return "<tool_call>" in source and "<function=" in source and "<parameter=" in source


FORMAT = markup(
    "qwen3_coder",
    _detect,
    Markup(
        outer=("<tool_call>", "</tool_call>"),
        call="<function=",
        call_end=">",
        close="</function>",
        key="<parameter=",
        key_end=">",
        value_end="</parameter>",
        lines=True,
        special=("<tool_call>", "</tool_call>"),
    ),
    aliases=("qwen3_xml", "qwen3_5", "nemotron_v3", "nano_v3", "step3p5", "mimo_v2"),
)
