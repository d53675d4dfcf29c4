"""Solar Open: the reasoning is a message of its own before that of the answer."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<|think|>" in source and "<|content|>" in source


FORMAT = tagged(
    "solar_open",
    _detect,
    Tags(
        thoughts=(("<|think|>", ("<|end|><|begin|>assistant",)),),
        answers=(("<|content|>", "<|end|>"),),
        alone=True,
    ),
    aliases=("solar_open2",),
)
