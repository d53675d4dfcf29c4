"""``<tool_call>{"name": …, "arguments": {…}}</tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4,
SmolLM 3 and many more.

Qwen 2.5's coders often leave the tags out; an answer that is only such an object counts, too.
"""

from __future__ import annotations

from gristmill.text.tools.marked import Layout, Marks, marked


def _detect(source: str) -> bool:
    return "<tool_call>" in source and "]<]minimax[>[" not in source


FORMAT = marked(
    "hermes",
    _detect,
    Marks(open=("<tool_call>",), close=("</tool_call>",), bare=True),
    Layout(each=(r'{open} "\n"', r'"\n" {close}'), between=r'"\n"'),
    aliases=("qwen", "qwen2", "qwen2_5", "qwen3", "granite4", "smollm3", "ernie45"),
)
