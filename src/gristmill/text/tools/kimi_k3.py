"""Kimi K3: tags of control tokens; arguments say of which type they are.

<|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY" type="string"<|sep|>VALUE
<|close|>argument<|sep|><|close|>call<|sep|>
"""

from __future__ import annotations

from gristmill.text.tools.markup import Markup, markup

_NAMES = ("string", "object", "array", "boolean")


def _type(kinds: frozenset[str]) -> str:
    known = next((name for name in _NAMES if kinds == frozenset({name})), None)
    return f' type="{known or ("number" if kinds else "string")}"'


FORMAT = markup(
    "kimi_k3",
    lambda source: "open_tag('tools')" in source and "<|open|>" in source,
    Markup(
        outer=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        several=True,
        call='<|open|>call tool="',
        call_end="<|sep|>",
        close="<|close|>call<|sep|>",
        key='<|open|>argument key="',
        key_end="<|sep|>",
        value_end="<|close|>argument<|sep|>",
        call_attribute=' index="1"',
        key_attribute=_type,
        gaps=("", "", "", "", ""),
        between="",
        special=("<|open|>", "<|close|>", "<|sep|>"),
    ),
)
