"""Input items of the Responses API into chat messages."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import cast

from gristmill.errors import RequestError
from gristmill.serve.dialect import a_list, a_text, an_object

MAX_ITEMS = 100_000
SEALED = "gristmill1:"
"""Before the text of a thought that a client keeps as ``encrypted_content``. It is encoded, not
encrypted: it is the client's own conversation, and the model's operator can read it anyway."""
_TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def seal(thought: str) -> str:
    """A thought as ``encrypted_content``."""
    return SEALED + base64.b64encode(thought.encode()).decode()


def _unseal(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.startswith(SEALED):
        return ""  # another server's: nobody here can read it
    try:
        return base64.b64decode(value[len(SEALED) :], validate=True).decode()
    except ValueError:
        raise RequestError(f"'{where}.encrypted_content' is damaged.", where) from None


def input_items(value: object, mark: str) -> list[dict[str, object]]:
    """``input`` as a list of items, each with a type and an id (``mark`` is part of new ids)."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    given = a_list(value, "input")
    if len(given) > MAX_ITEMS:
        raise RequestError(f"'input' may hold at most {MAX_ITEMS} items.", "input")
    items: list[dict[str, object]] = []
    for i, item in enumerate(given):
        where = f"input[{i}]"
        fields = {k: v for k, v in an_object(item, where).items() if v is not None}
        what = fields.setdefault("type", "message" if "role" in fields else None)
        if what == "item_reference":
            a_text(fields, "id", where)
        elif not isinstance(what, str) or what not in _PREFIXES:
            raise RequestError(
                f"'{where}' is of type {str(what)[:60]!r}; this server takes "
                f"{', '.join(map(repr, _PREFIXES))} and 'item_reference'.",
                where,
            )
        if not isinstance(fields.get("id"), str):
            fields["id"] = f"{_PREFIXES[str(what)]}_{mark}_i{i}"
        if what == "message" and isinstance(fields.get("content"), str):
            kind = "output_text" if fields.get("role") == "assistant" else "input_text"
            fields["content"] = [{"type": kind, "text": fields["content"]}]
        items.append(fields)
    return items


def chat_messages(
    items: Sequence[Mapping[str, object]], instructions: str | None
) -> list[dict[str, object]]:
    """OpenAI's chat messages.

    What stands between two messages of others is one turn of the assistant. The instructions
    and the system's and developer's messages before all others are one system message: many
    templates take only one. Raises RequestError that names the item at fault.
    """
    made: list[dict[str, object]] = []
    head = [instructions] if instructions else []
    turn: dict[str, object] | None = None
    for i, item in enumerate(items):
        where = f"input[{i}]"
        what, role = item.get("type"), item.get("role")
        if what in ("reasoning", "function_call") or role == "assistant":
            if turn is None:
                turn = {"role": "assistant", "content": ""}
                made.append(turn)
            _add(turn, item, where)
            continue
        turn = None
        if what == "function_call_output":
            text = _text(item.get("output"), f"{where}.output")
            call = a_text(item, "call_id", where)
            made.append({"role": "tool", "tool_call_id": call, "content": text})
            continue
        if role not in ("user", "system", "developer"):
            raise RequestError(
                f"'{where}.role' must be 'user', 'assistant', 'system' or 'developer'.",
                f"{where}.role",
            )
        text = _text(item.get("content"), f"{where}.content")
        if role != "user" and not made:
            head.append(text)
        else:
            made.append({"role": role, "content": text})
    _name_results(made)
    if head:
        made.insert(0, {"role": "system", "content": "\n\n".join(head)})
    return made


def _add(turn: dict[str, object], item: Mapping[str, object], where: str) -> None:
    """Adds an item to the assistant's turn."""
    what = item.get("type")
    if what == "reasoning":
        thought = (
            _text(item.get("content"), f"{where}.content")
            or _unseal(item.get("encrypted_content"), where)
            or _text(item.get("summary"), f"{where}.summary")
        )
        _join(turn, "reasoning_content", thought)
    elif what == "function_call":
        call: dict[str, object] = {
            "id": a_text(item, "call_id", where),
            "type": "function",
            "function": {
                "name": a_text(item, "name", where),
                "arguments": a_text(item, "arguments", where),
            },
        }
        calls = cast("list[object]", turn.setdefault("tool_calls", []))
        calls.append(call)
    else:
        _join(turn, "content", _text(item.get("content"), f"{where}.content"))


def _join(turn: dict[str, object], name: str, text: str) -> None:
    before = turn.get(name)
    if text:
        turn[name] = f"{before}\n{text}" if before else text


def _text(value: object, where: str) -> str:
    """A string, or the texts of a list of parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for i, part in enumerate(a_list(value, where)):
        at = f"{where}[{i}]"
        fields = an_object(part, at)
        kind = fields.get("type")
        if kind not in _TEXTS:
            raise RequestError(
                f"'{at}' is of type {str(kind)[:60]!r}; this model takes text only.", at
            )
        texts.append(a_text(fields, "refusal" if kind == "refusal" else "text", at))
    return "\n".join(texts)


def _name_results(messages: Sequence[dict[str, object]]) -> None:
    """Adds to each tool's result the tool's name, which some templates want."""
    names: dict[object, object] = {}
    for message in messages:
        for call in cast("list[dict[str, object]]", message.get("tool_calls") or []):
            function = cast("dict[str, object]", call["function"])
            names[call["id"]] = function["name"]
        name = names.get(message.get("tool_call_id"))
        if name is not None:
            message["name"] = name
