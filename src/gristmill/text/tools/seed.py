"""Seed-OSS: Qwen3-Coder's tags in an outer one of its own, values not on lines of their own."""

from __future__ import annotations

from gristmill.text.tools.markup import Markup, markup


def _detect(source: str) -> bool:
    return "<seed:tool_call>" in source


FORMAT = markup(
    "seed_oss",
    _detect,
    Markup(
        outer=("<seed:tool_call>", "</seed:tool_call>"),
        call="<function=",
        call_end=">",
        close="</function>",
        key="<parameter=",
        key_end=">",
        value_end="</parameter>",
        special=("<seed:tool_call>", "</seed:tool_call>"),
    ),
)
