"""Llama 3's JSON: ``{"name": …, "parameters": {…}}`` as the whole answer, after
``<|python_tag|>`` perhaps. Only names of the request's tools make an object a call.
"""

from __future__ import annotations

from gristmill.text.tools.json_text import Keys
from gristmill.text.tools.marked import Layout, Marks, marked

TAG = "<|python_tag|>"


def _detect(source: str) -> bool:
    return (
        '"parameters": ' in source
        and ("<|python_tag|>" in source or "<|start_header_id|>ipython" in source)
        and "<function=" not in source
    )


FORMAT = marked(
    "llama3_json",
    _detect,
    Marks(open=(TAG,), bare=True, keys=Keys(name=("name", "function"))),
    Layout(between='"; "', keys=("name", "parameters")),
    aliases=("llama4_json", "llama3", "llama"),
    example='{"name": "NAME", "parameters": {"KEY": "VALUE"}}',
)
