"""gpt-oss's Harmony: its analysis channel. The parser is the one that reads its tool calls."""

from __future__ import annotations

from gristmill.text.reasoning.base import Format
from gristmill.text.tools import harmony

_START = f"{harmony.CHANNEL}analysis{harmony.MESSAGE}"


def _opened(prompt: str) -> bool:
    return prompt.endswith(_START)


FORMAT = Format(
    name="harmony",
    detect=harmony.FORMAT.detect,
    parser=lambda prompt: harmony.parser((), prompt),
    opened=_opened,
    open=_START,
    close=f"{harmony.END}{harmony.START}assistant{harmony.CHANNEL}final{harmony.MESSAGE}",
    marks=harmony.FORMAT.marks,
    aliases=harmony.FORMAT.aliases,
    calls=True,
    close_before_calls=f"{harmony.END}{harmony.START}assistant",
)
