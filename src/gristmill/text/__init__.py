"""Text to ids and back: tokenizer, chat template, incremental detokenizer, stops, reasoning.

Names are loaded when first used, so that importing one part does not pay for the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gristmill.text.chat import Chat, Prompt
    from gristmill.text.detokenizer import Detokenizer
    from gristmill.text.stops import StopMatcher
    from gristmill.text.template import ChatTemplate
    from gristmill.text.tokenizer import Segment, Tokenizer

__all__ = [
    "Chat",
    "ChatTemplate",
    "Detokenizer",
    "Prompt",
    "Segment",
    "StopMatcher",
    "Tokenizer",
]

_HOMES = {
    "Chat": "chat",
    "ChatTemplate": "template",
    "Detokenizer": "detokenizer",
    "Prompt": "chat",
    "Segment": "tokenizer",
    "StopMatcher": "stops",
    "Tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"gristmill.text.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'gristmill.text' has no attribute {name!r}")
