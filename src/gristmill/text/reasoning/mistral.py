"""``[THINK]reasoning[/THINK]answer``: Magistral, Ministral 3 and other models of Mistral."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "[THINK]" in source


FORMAT = tagged(
    "mistral",
    _detect,
    Tags(thoughts=(("[THINK]", ("[/THINK]",)),)),
    aliases=("magistral", "ministral"),
)
