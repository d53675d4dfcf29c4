"""Command A and Command R7B: thought and answer each stand between control tokens."""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged


def _detect(source: str) -> bool:
    return "<|START_THINKING|>" in source


FORMAT = tagged(
    "cohere",
    _detect,
    Tags(
        thoughts=(("<|START_THINKING|>", ("<|END_THINKING|>",)),),
        answers=(
            ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            ("<|START_TEXT|>", "<|END_TEXT|>"),
        ),
        alone=True,
        ends=("<|START_RESPONSE|>", "<|START_TEXT|>", "<|START_ACTION|>"),
    ),
    aliases=("command_r7b", "cohere_command3", "cohere2moe"),
)
