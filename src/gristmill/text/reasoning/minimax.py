"""``<mm:think>reasoning</mm:think>answer``: MiniMax M3."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<mm:think>" in source


FORMAT = tagged("minimax_m3", _detect, Tags(thoughts=(("<mm:think>", ("</mm:think>",)),)))
