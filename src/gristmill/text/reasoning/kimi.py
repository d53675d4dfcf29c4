"""Kimi K2 Thinking: ``<think>`` tags, and tool calls that may follow an unclosed thought.

Kimi K3 has tags of other control tokens, and encloses its answer.
"""

from __future__ import annotations

from gristmill.text.reasoning.tags import Tags, tagged

_CALLS = "<|tool_calls_section_begin|>"


def _detect(source: str) -> bool:
    return _CALLS in source and "<think>" in source


def _detect_k3(source: str) -> bool:
    return "open_tag('think')" in source and "<|open|>" in source


FORMAT = tagged(
    "kimi_k2",
    _detect,
    Tags(thoughts=(("<think>", ("</think>",)),), ends=(_CALLS,)),
)

K3 = tagged(
    "kimi_k3",
    _detect_k3,
    Tags(
        thoughts=(("<|open|>think<|sep|>", ("<|close|>think<|sep|>",)),),
        answers=(("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
        alone=True,
    ),
)
