"""A JSON list of calls after ``<|tool_call|>``: Granite 3, and Phi 4 mini, which closes it."""

from __future__ import annotations

from gristmill.text.tools.marked import Layout, Marks, marked

_CALL = '[{"name": "NAME", "arguments": {"KEY": "VALUE"}}]'

FORMAT = marked(
    "granite",
    lambda source: "<|tool_call|>" in source,
    Marks(open=("<|tool_call|>", "<tool_call>"), close=("</tool_call>",)),
    Layout(before='{open} "["', after='"]"'),
    aliases=("granite_20b_fc",),
    example=f"<|tool_call|>{_CALL}",
)
PHI4 = marked(
    "phi4_mini_json",
    lambda source: "<|/tool_call|>" in source,
    Marks(open=("<|tool_call|>", "functools"), close=("<|/tool_call|>",)),
    Layout(before='{open} "["', after='"]" {close}'),
    aliases=("phi4", "phi4_mini"),
    example=f"<|tool_call|>{_CALL}<|/tool_call|>",
)
