"""``<think>reasoning</think>answer``: DeepSeek R1, Qwen 3, SmolLM 3, GLM and many more."""

from __future__ import annotations

from typing import Literal

from gristmill.types import Piece

NAME = "think"
_OPEN = "<think>"
_CLOSE = "</think>"


def detect(template_source: str) -> bool:
    """Whether a template speaks of thoughts between these tags."""
    return _CLOSE in template_source or _OPEN in template_source


def opened(prompt: str) -> bool:
    """Whether the prompt ends inside a thought, as generation prompts of some models do."""
    return prompt.rstrip().endswith(_OPEN)


class Parser:
    """Splits one answer. Only what stands at its start is a thought: tags quoted later are text.

    White space at the borders of the thought belongs to neither part. Without a thought the
    answer is passed on untouched. A thought that never ends is all reasoning.
    """

    def __init__(self, opened: bool = False) -> None:
        """``opened``: the prompt has already begun the thought."""
        self._state: Literal["start", "thought", "after", "answer"] = "start"
        self._opened = opened
        self._held = ""
        self._empty = True
        if opened:
            self._state = "thought"

    def push(self, text: str) -> Piece:
        """What ``text`` has added."""
        if self._state == "answer":
            return Piece(content=text)
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "thought":
            reasoning = self._thought()
        return Piece(reasoning, self._content())

    def flush(self) -> Piece:
        """What was held back: an unfinished tag is the text it is."""
        held, self._held = self._held, ""
        if self._state == "thought":
            return Piece(self._spoken(held.rstrip()))
        if self._state == "after":
            return Piece(content=held.lstrip())
        return Piece(content=held)

    def _start(self) -> None:
        """Look for the opening tag; anything else than white space before it is the answer."""
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._state, self._held = "thought", text[len(_OPEN) :]
        elif not _OPEN.startswith(text):
            self._state = "answer"

    def _thought(self) -> str:
        """Reasoning that is certain; a possible closing tag and white space before it wait."""
        if self._empty and self._opened:
            text = self._held.lstrip()  # a model may repeat the tag its prompt has opened
            if text.startswith(_OPEN):
                self._held, self._opened = text[len(_OPEN) :], False
            elif _OPEN.startswith(text):
                return ""
        end = self._held.find(_CLOSE)
        if end >= 0:
            thought, self._held = self._held[:end], self._held[end + len(_CLOSE) :]
            self._state = "after"
            return self._spoken(thought.rstrip())
        keep = _tail(self._held, _CLOSE)
        cut = len(self._held[: len(self._held) - keep].rstrip())
        thought, self._held = self._held[:cut], self._held[cut:]
        return self._spoken(thought)

    def _spoken(self, thought: str) -> str:
        if self._empty:
            thought = thought.lstrip()
            self._empty = not thought
        return thought

    def _content(self) -> str:
        if self._state == "after":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "answer"
        if self._state != "answer":
            return ""
        text, self._held = self._held, ""
        return text


def _tail(text: str, tag: str) -> int:
    """Length of the longest end of ``text`` that could begin ``tag``."""
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:n]):
            return n
    return 0
