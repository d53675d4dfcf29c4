"""Calls as ``<invoke name="…">`` with a ``<parameter name="…">`` for each argument.

MiniMax M2, and DeepSeek from V3.2 on, whose tags have a prefix and whose arguments say whether
they are strings.
"""

from __future__ import annotations

from gristmill.text.tools import typed
from gristmill.text.tools.markup import Markup, markup

_DSML = "｜DSML｜"


def _detect_minimax(source: str) -> bool:
    return "<minimax:tool_call>" in source and "<invoke name=" in source


def _detect_dsml(source: str) -> bool:
    return _DSML in source


def _textual(kinds: frozenset[str]) -> str:
    return f' string="{"true" if kinds == typed.TEXT else "false"}"'


def _dsml(outer: str) -> Markup:
    return Markup(
        outer=(f"<{_DSML}{outer}>", f"</{_DSML}{outer}>"),
        several=True,
        call=f'<{_DSML}invoke name="',
        call_end=">",
        close=f"</{_DSML}invoke>",
        key=f'<{_DSML}parameter name="',
        key_end=">",
        value_end=f"</{_DSML}parameter>",
        key_attribute=_textual,
        special=(_DSML,),
    )


MINIMAX = markup(
    "minimax_m2",
    _detect_minimax,
    Markup(
        outer=("<minimax:tool_call>", "</minimax:tool_call>"),
        several=True,
        call='<invoke name="',
        call_end=">",
        close="</invoke>",
        key='<parameter name="',
        key_end=">",
        value_end="</parameter>",
        special=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
)
DEEPSEEK_V32 = markup(
    "deepseek_v32",
    lambda source: _detect_dsml(source) and "function_calls" in source,
    _dsml("function_calls"),
)
DEEPSEEK_V4 = markup("deepseek_v4", _detect_dsml, _dsml("tool_calls"))
