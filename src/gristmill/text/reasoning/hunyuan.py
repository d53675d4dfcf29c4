"""Hunyuan: ``<think>…</think><answer>…</answer>``; Hy3 has tags with a suffix of its own."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<think>" in source and "<answer>" in source


def _detect_hy3(source: str) -> bool:
    return "<think{}>" in source or "<think:opensource>" in source


FORMAT = tagged(
    "hunyuan_a13b",
    _detect,
    Tags(thoughts=(("<think>", ("</think>",)),), answers=(("<answer>", "</answer>"),)),
    aliases=("hunyuan",),
)

HY3 = tagged(
    "hy_v3",
    _detect_hy3,
    Tags(thoughts=(("<think:opensource>", ("</think:opensource>",)),)),
)
