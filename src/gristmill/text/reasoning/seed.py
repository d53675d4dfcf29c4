"""``<seed:think>reasoning</seed:think>answer``: Seed-OSS."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<seed:think>" in source


FORMAT = tagged(
    "seed_oss", _detect, Tags(thoughts=(("<seed:think>", ("</seed:think>",)),)), aliases=("seed",)
)
