"""Granite 3.3 and ERNIE: ``<think>…</think><response>…</response>``; Granite 3.2: two sentences."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged

_THOUGHT = ("Here is my thought process:", "Here's my thought process:")
_RESPONSE = ("Here is my response:", "Here's my response:")


def _detect(source: str) -> bool:
    sentences = any(each in source for each in _THOUGHT)
    tags = "<think>" in source and "<response>" in source
    return sentences or (tags and "minimax:" not in source)  # there it is what a tool says


FORMAT = tagged(
    "granite",
    _detect,
    Tags(
        thoughts=(("<think>", ("</think>",)), *((each, _RESPONSE) for each in _THOUGHT)),
        answers=(("<response>", "</response>"),),
    ),
    aliases=("ernie45",),
)
