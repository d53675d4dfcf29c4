"""gpt-oss's Harmony: an answer is a row of messages in channels, some of them to functions.

    <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>commentary
    to=functions.NAME <|constrain|>json<|message|>{"a": 1}<|call|>

``analysis`` is reasoning, ``final`` is the answer, ``commentary`` to nobody is what the model
says before it calls. ``<|call|>`` and ``<|return|>`` end the answer: they are not in its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gristmill.text.tools import json_text
from gristmill.text.tools.base import Format, Parser, Tool, Wanted, any_of, schema_rule
from gristmill.text.tools.reader import MalformedError, Reader, Script, ScriptParser

CHANNEL, MESSAGE, START, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, CALL, RETURN, START)
_HEADS = (CHANNEL, START, MESSAGE, CONSTRAIN, "to=")
_MAX_HEAD = 512
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_PEOPLE = ("user", "assistant", "all")


class _Answer:
    """The script of one answer."""

    def __init__(self, prompt: str) -> None:
        at = prompt.rfind(START)
        self._head = prompt[at + len(START) :] if at >= 0 else ""
        self._again: set[str] = set()

    def __call__(self, reader: Reader) -> Script[None]:
        head, begun, _ = self._head.partition(MESSAGE)
        known = False
        while True:
            if not begun and (head := (yield from self._header(reader, head, known))) is None:
                return
            begun = ""
            mark = yield from self._body(reader, head)
            if mark is None:
                return
            known = mark == START
            head = ""

    def _header(self, reader: Reader, head: str, known: bool) -> Script[str | None]:
        """The text up to ``<|message|>``, added to ``head``. Text where no header begins is
        content (``known``: one has begun). None at the end of the answer."""
        while True:
            if not known:
                yield from reader.space()
                mark = yield from reader.one_of(_HEADS)
                if mark is None:
                    mark = yield from reader.until((START, CHANNEL), reader.say)
                if mark is None:
                    return None
                if mark == MESSAGE:
                    return head
                head += mark
            parts = [head]
            mark = yield from reader.until((MESSAGE, *_ENDS), parts.append)
            head = "".join(parts)
            if mark == MESSAGE and len(head) <= _MAX_HEAD:
                return head
            reader.say(_spoken(head))
            if mark is None:
                return None
            head, known = "", mark == START  # an empty message

    def _body(self, reader: Reader, head: str) -> Script[str | None]:
        """A message; gives the mark that ended it."""
        to = _RECIPIENT.search(head)
        channel = _CHANNEL.search(head)
        hidden = channel is not None and channel[1] == "analysis"
        if to is not None and to[1] not in _PEOPLE:
            yield from self._call(reader, to[1].removeprefix("functions."))
            hidden = False
        emit = reader.think if hidden else reader.say
        return (yield from reader.until(_ENDS, self._apart(emit, "thought" if hidden else "said")))

    def _call(self, reader: Reader, name: str) -> Script[None]:
        """A function's arguments; what is no JSON object is left for content."""
        reader.hold()
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            reader.back("")
            return
        reader.call(name)
        try:
            yield from json_text.value(reader, reader.arguments)
        except MalformedError:
            return
        yield from reader.space()

    def _apart(self, emit: Callable[[str], None], part: str) -> Callable[[str], None]:
        """Several messages of one kind are set apart by an empty line."""
        first = True

        def write(text: str) -> None:
            nonlocal first
            if not text:
                return
            if first and part in self._again:
                emit("\n\n")
            first = False
            self._again.add(part)
            emit(text)

        return write


def _spoken(head: str) -> str:
    """What of a header that never came to its message is a text: an answer that left it out."""
    said = head.removeprefix(START).removeprefix("assistant")
    whole = CHANNEL not in said and "to=" not in said
    return said if whole or len(head) > _MAX_HEAD else ""


def _detect(source: str) -> bool:
    return CHANNEL in source and MESSAGE in source


def parser(tools: Sequence[Tool], prompt: str) -> Parser:
    """A parser for one answer: its reasoning, its content and its calls."""
    return ScriptParser(_Answer(prompt))


def _grammar(wanted: Wanted) -> str:
    rules: list[str] = []
    names: list[str] = []
    mark = wanted.mark
    for i, tool in enumerate(wanted.tools):
        names.append(f"call_{i}")
        head = f'"commentary to=functions.{tool.name} " {mark(CONSTRAIN)} "json" {mark(MESSAGE)}'
        rules.append(f"call_{i}: {mark(CHANNEL)} {head} call_args_{i}\n")
        rules.append(schema_rule(f"call_args_{i}", tool))
    return f"calls: {any_of(names)}\n" + "".join(rules)


FORMAT = Format(
    name="harmony",
    detect=_detect,
    parser=parser,
    grammar=_grammar,
    marks=(CHANNEL, MESSAGE, START, CONSTRAIN, END),
    aliases=("openai", "openai_gptoss", "gptoss", "gpt_oss"),
    reasons=True,
)
