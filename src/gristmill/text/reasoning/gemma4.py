"""Gemma 4: a channel ``<|channel>thought … <channel|>`` before the answer."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<|channel>" in source


FORMAT = tagged(
    "gemma4",
    _detect,
    Tags(thoughts=(("<|channel>thought", ("<channel|>",)),)),
)
