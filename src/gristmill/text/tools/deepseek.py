"""DeepSeek's V3.1 and V3 (R1 alike), told apart by what stands between the marks.

V3.1: begin NAME sep {…} end          V3: begin function sep NAME, a fence with {…}, end
"""

from __future__ import annotations

from gristmill.text.tools.named import Names, named
from gristmill.text.tools.reader import Reader, Script

_SEP = "<｜tool▁sep｜>"
_BEGIN = "<｜tool▁call▁begin｜>"
_END = "<｜tool▁call▁end｜>"
_OPEN = "<｜tool▁calls▁begin｜>"
_CLOSE = "<｜tool▁calls▁end｜>"


def _head(reader: Reader) -> Script[tuple[str, str | None]]:
    """Both versions' heads: a function may be called "function"."""
    first, _ = yield from reader.up_to(_SEP)
    if first.strip() == "function" and (yield from reader.peek()) != "{":
        first, _ = yield from reader.up_to("\n")
    return first, None


def _names(written: tuple[str, ...], fence: tuple[str, str], between: str) -> Names:
    return Names(
        begin=(_BEGIN,),
        head=_head,
        written=written,
        end=(_END,),
        open=(_OPEN, "<｜tool▁calls｜>"),
        close=(_CLOSE,),
        fence=fence,
        between=between,
        inner=(_SEP,),
    )


def _detect_v31(source: str) -> bool:
    return _SEP in source and "```json" not in source


def _detect_v3(source: str) -> bool:
    return _SEP in source


V31 = named(
    "deepseek_v31",
    _detect_v31,
    _names(("{name}", _SEP), ("", ""), ""),
    example=f'{_OPEN}{_BEGIN}NAME{_SEP}{{"KEY": "VALUE"}}{_END}{_CLOSE}',
)
V3 = named(
    "deepseek_v3",
    _detect_v3,
    _names(("function", _SEP, "{name}\n"), ("```json\n", "\n```"), "\n"),
    aliases=("deepseek_r1",),
    example=(f'{_OPEN}{_BEGIN}function{_SEP}NAME\n```json\n{{"KEY": "VALUE"}}\n```{_END}{_CLOSE}'),
)
