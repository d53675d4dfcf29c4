"""Chats with tools for templates that cannot write them.

What a template can write is found out by having it write a small chat. What it cannot is put
into texts that every template writes: the tools into the system message, a call into the
assistant's text, a result into a message of the user.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.errors import RequestError
from gristmill.text.tools.base import Format

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message] | None], str]

_ID = "abcdefgh1"
_NINE = re.compile(r"length\s*(!=|<|==)\s*9")
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_name",
        "description": "probe_about",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe_text"}},
            "required": ["probe_key"],
        },
    },
}
_USER = {"role": "user", "content": "probe_user"}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template writes: ``tools``, ``calls`` in an answer, ``several`` in one, ``results``
    (messages of the role "tool"), ``system`` messages. ``nine``: it insists on ids of nine letters
    and digits."""

    tools: bool = True
    calls: bool = True
    several: bool = True
    results: bool = True
    system: bool = True
    nine: bool = False


def abilities(render: Render, source: str) -> Abilities:
    """Finds them out. Where a template refuses the small chat, its source must do."""

    def writes(messages: Sequence[Message], sign: str, word: str, tools: bool = False) -> bool:
        try:
            return sign in render(messages, [_TOOL] if tools else None)
        except RequestError:
            return word in source

    called = [_USER, _answer("probe_value")]
    two = [_USER, _answer("probe_value", "probe_second")]
    result = {"role": "tool", "tool_call_id": _ID, "name": "probe_name", "content": "probe_result"}
    calls = writes([*called, result], "probe_value", "tool_calls", tools=True)
    return Abilities(
        tools=writes([_USER], "probe_about", "tools", tools=True),
        calls=calls,
        several=calls and writes(two, "probe_second", "\0", tools=True),
        results=writes([*called, result], "probe_result", "tool", tools=True),
        system=writes([{"role": "system", "content": "probe_rule"}, _USER], "probe_rule", "\0"),
        nine=_NINE.search(source) is not None,
    )


def _answer(*values: str) -> dict[str, Any]:
    calls = [
        {
            "id": _ID[:-1] + str(i),
            "type": "function",
            "function": {"name": "probe_name", "arguments": {"probe_key": value}},
        }
        for i, value in enumerate(values, 1)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def adapt(
    messages: Sequence[Message], tools: Sequence[Message], able: Abilities, form: Format
) -> tuple[list[Message], Sequence[Message]]:
    """Messages (well formed: see ``text.messages.normalize``) and tools as the template can write
    them. ``form`` is how calls are written."""
    out: list[Message] = list(messages)
    if not able.several:
        out = _one_by_one(out)
    if not able.calls:
        out = [_spoken(message, form) for message in out]
    if not able.results:
        out = _told(out)
    if able.nine:
        out = [_nine(message) for message in out]
    if tools and not able.tools:
        return _introduced(out, tools, able, form), ()
    return out, tools


def _one_by_one(messages: list[Message]) -> list[Message]:
    """Answers with several calls as several answers, each before its result."""
    out: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] == "tool" and waiting:
            given = message.get("tool_call_id")
            at = next(
                (i for i, each in enumerate(waiting) if each["tool_calls"][0].get("id") == given), 0
            )
            out.append(waiting.pop(at))
        elif waiting:
            out += waiting
            waiting = []
        calls: Sequence[Any] = message.get("tool_calls") or ()
        if len(calls) < 2:
            out.append(message)
            continue
        waiting = [{**message, "content": "", "tool_calls": [call]} for call in calls]
        waiting[0] = {**waiting[0], "content": message["content"]}
    return out + waiting


def _spoken(message: Message, form: Format) -> Message:
    """An answer whose calls are part of its text."""
    calls: Sequence[Any] = message.get("tool_calls") or ()
    if not calls:
        return message
    written = [_written(call["function"], form) for call in calls]
    text = "\n".join([*filter(None, [message["content"]]), *written])
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": text}


def _written(function: Mapping[str, Any], form: Format) -> str:
    name, arguments = str(function["name"]), str(function["arguments"])
    if form.written is not None:
        return form.written(name, function["arguments"])
    first, found, last = form.example.replace("NAME", name).partition('{"KEY": "VALUE"}')
    return first + arguments + last if found else f"{name}({arguments})"


def _told(messages: Sequence[Message]) -> list[Message]:
    """Results as what the user says; several in a row are one message."""
    out: list[Message] = []
    told = False
    for message in messages:
        if message["role"] != "tool":
            out.append(message)
            told = False
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if told:
            text = f"{out.pop()['content']}\n{text}"
        out.append({"role": "user", "content": text})
        told = True
    return out


def _nine(message: Message) -> Message:
    """Ids in the template's form; what was one id stays one."""
    out = dict(message)
    if isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = nine(out["tool_call_id"])
    if out.get("tool_calls"):
        out["tool_calls"] = [{**c, "id": nine(str(c.get("id", "")))} for c in out["tool_calls"]]
    return out


def nine(given: str) -> str:
    """Nine letters and digits that stand for an id."""
    if len(given) == 9 and given.isascii() and given.isalnum():
        return given
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


def _introduced(
    messages: Sequence[Message], tools: Sequence[Message], able: Abilities, form: Format
) -> list[Message]:
    """The tools and how to call them, in the system message (or the first of the user's)."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    text = (
        "You can call these functions when one of them helps to answer:\n"
        + "\n".join(lines)
        + "\n\nTo call a function, answer with nothing but its call, in this form:\n"
        + form.example
    )
    role = "system" if able.system else "user"
    out = list(messages)
    at = next((i for i, message in enumerate(out) if message["role"] in (role, "developer")), None)
    if at is None or (role == "system" and at != 0):
        return [{"role": role, "content": text}, *out]
    said = out[at]["content"]
    parts = (said, text) if role == "system" else (text, said)
    out[at] = {**out[at], "content": "\n\n".join(filter(None, parts))}
    return out
