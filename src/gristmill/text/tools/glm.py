"""GLM 4.5 and its kin: the name, then keys and values in tags of their own. Hy3 adds a suffix.

<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>
"""

from __future__ import annotations

from dataclasses import replace

from gristmill.text.tools.markup import Markup, markup


def _detect(source: str) -> bool:
    return "<arg_key>" in source and "<tool_call>" in source


def _detect_47(source: str) -> bool:
    # GLM 4.7 and others write no line ends between the tags.
    return _detect(source) and "{arg-key-1}</arg_key><arg_value>" in source


def _detect_hy3(source: str) -> bool:
    return "<arg_key{}>" in source or "<arg_key:opensource>" in source


_TAGS = Markup(
    outer=("<tool_call>", "</tool_call>"),
    call="",
    call_end="",
    close="</tool_call>",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    gaps=("", "\n", "\n", "\n", ""),
)
_HY3 = Markup(
    outer=("<tool_calls:opensource>", "</tool_calls:opensource>"),
    several=True,
    call="<tool_call:opensource>",
    call_end="<tool_sep:opensource>",
    close="</tool_call:opensource>",
    key="<arg_key:opensource>",
    key_end="</arg_key:opensource>",
    value="<arg_value:opensource>",
    value_end="</arg_value:opensource>",
    gaps=("\n", "\n", "\n", "\n", "\n"),
)

GLM47 = markup("glm47", _detect_47, replace(_TAGS, gaps=("", "", "", "", ""), between=""))
FORMAT = markup("glm45", _detect, _TAGS, aliases=("glm4_moe", "laguna", "poolside_v1", "ling3"))
HY3 = markup("hy_v3", _detect_hy3, _HY3)
