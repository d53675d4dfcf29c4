"""Apriel: a sentence before the reasoning, ``[BEGIN FINAL RESPONSE]`` before the answer."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged

_FINAL = "[BEGIN FINAL RESPONSE]"


def _detect(source: str) -> bool:
    return _FINAL in source


FORMAT = tagged(
    "apriel",
    _detect,
    Tags(
        thoughts=(("Here are my reasoning steps:", (_FINAL,)),),
        answers=(("", "[END FINAL RESPONSE]"),),
    ),
)
