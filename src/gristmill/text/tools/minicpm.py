"""MiniCPM 5: ``<function name="…"><param name="…">VALUE</param></function>``, CDATA allowed."""

from __future__ import annotations

from gristmill.text.tools.markup import Markup, markup


def _detect(source: str) -> bool:
    return '<function name="' in source and '<param name="' in source


FORMAT = markup(
    "minicpm5",
    _detect,
    Markup(
        call='<function name="',
        call_end=">",
        close="</function>",
        key='<param name="',
        key_end=">",
        value_end="</param>",
        cdata=True,
        gaps=("", "", "", "", ""),
        special=("<function", "</function>", "<param", "</param>"),
    ),
    aliases=("minicpm",),
)
