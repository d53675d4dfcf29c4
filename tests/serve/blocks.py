"""A model that says what a test wants, with a parser for thoughts and calls: for dialects that
answer in blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gristmill.errors import RequestError
from gristmill.serve.protocol import ChatInput, Prompt, Served
from gristmill.types import CallDelta, Piece, Request
from tests.serve.fake_engine import CONTEXT, EOS, FakeEngine, FakeTokenizer

MARKS = ("<think>", "</think>", "<call>", "</call>")


class BlockParser:
    """``<think>…</think>``, ``<call>name {json}</call>``, and text. Arguments as they come."""

    def __init__(self) -> None:
        self.mode = "text"
        self.held = ""
        self.name = ""
        self.calls = 0

    def push(self, text: str) -> Piece:
        piece = Piece()
        for char in text:  # so that an answer's runs come one by one
            piece = joined(piece, self._char(char))
        return piece

    def _char(self, char: str) -> Piece:
        self.held += char
        if any(mark.startswith(self.held) and mark != self.held for mark in MARKS):
            return Piece()
        if self.held in MARKS:
            self.mode = {"<think>": "think", "<call>": "name"}.get(self.held, "text")
            self.held = ""
            return Piece()
        said, self.held = self.held, ""
        return self._say(said)

    def _say(self, said: str) -> Piece:
        if self.mode == "think":
            return Piece(reasoning=said)
        if self.mode == "text":
            return Piece(content=said)
        if self.mode == "name":
            if said != " ":
                self.name += said
                return Piece()
            self.mode, name, self.name = "call", self.name, ""
            self.calls += 1
            return Piece(calls=(CallDelta(self.calls - 1, f"call_{self.calls}", name),))
        return Piece(calls=(CallDelta(self.calls - 1, arguments=said),))

    def flush(self) -> Piece:
        held, self.held = self.held, ""
        return self._say(held) if held else Piece()


def joined(a: Piece, b: Piece) -> Piece:
    return Piece(a.reasoning + b.reasoning, a.content + b.content, a.calls + b.calls)


class Model:
    """``says`` are the answers in turn (the last again and again); ``seen`` what it was asked."""

    def __init__(self, *says: str, ends: bool = True) -> None:
        self.says = list(says)
        self.ends = ends
        self.seen: list[ChatInput] = []
        self.engine = FakeEngine(script=self.script)
        self.served = Served(("fake", "alias"), self.engine, FakeTokenizer(), self.chat, CONTEXT, 0)

    def script(self, request: Request, index: int) -> list[int]:
        text = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return [*text.encode(), *([EOS] if self.ends else [])]

    def chat(self, chat: ChatInput) -> Prompt:
        """The prompt is the messages and tools as JSON."""
        self.seen.append(chat)
        for message in chat.messages:
            assert isinstance(message, dict)
            if message.get("role") == "forbidden":
                raise RequestError("Conversation roles must alternate.", "messages")
        text = json.dumps([list(chat.messages), list(chat.tools)], default=dict)
        ids = FakeTokenizer().encode(text, add_special=True, parse_special=False)
        return Prompt(tuple(ids), BlockParser)

    @property
    def messages(self) -> list[Any]:
        """What the template was given last."""
        return list(self.seen[-1].messages)

    @property
    def variables(self) -> Mapping[str, object]:
        return self.seen[-1].variables
