"""Chat messages as clients send them, made into what templates expect.

Clients send what OpenAI's schema allows (and what other servers have taught them); templates
were written for plain texts and mappings. The differences are settled here, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gristmill.errors import RequestError

ROLES = (
    "system", "developer", "user", "assistant", "tool", "function", "ipython", "observation",
    "context", "documents", "document", "control",
)  # fmt: skip
"""Roles that some template knows; which of them a model takes, its template says."""

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_REASONING = ("reasoning_content", "reasoning", "thinking")


class Arguments(dict[str, Any]):
    """Arguments of a tool call: a mapping that writes itself as the JSON text it came from.

    Some templates want a mapping, others add the text to theirs; this serves both.
    """

    def __init__(self, values: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(values)
        self._text = json.dumps(values, ensure_ascii=False) if text is None else text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + self._text if isinstance(other, str) else NotImplemented


def normalize(messages: Sequence[object]) -> list[dict[str, Any]]:
    """Messages for a template: copies, in which

    - ``content`` is a text: null and missing become "", text parts are joined by line ends;
    - ``tool_calls`` are well formed, their ``arguments`` mappings (from JSON texts);
    - reasoning under any of its names is there under all of them.

    Raises RequestError that names the message at fault.
    """
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} is not an object.", where)
    given = cast("Mapping[str, Any]", message)
    out = {key: value for key, value in given.items() if value is not None}
    role = out.get("role")
    if role not in ROLES:
        shown = json.dumps(role)[:60] if isinstance(role, (str, type(None))) else "not a text"
        raise RequestError(
            f"{where}.role is {shown}; allowed are {', '.join(ROLES)}.", f"{where}.role"
        )
    out["content"] = _content(given.get("content"), f"{where}.content")
    if "tool_calls" in out:
        calls = out["tool_calls"]
        if not isinstance(calls, (list, tuple)):
            raise RequestError(f"{where}.tool_calls is not a list.", f"{where}.tool_calls")
        known = [
            _tool_call(call, f"{where}.tool_calls[{i}]")
            for i, call in enumerate(cast("Sequence[object]", calls))
        ]
        out["tool_calls"] = known
        if not known:
            del out["tool_calls"]
    for key in _REASONING:
        if isinstance(out.get(key), str):
            thought = out[key]
            out["reasoning_content"] = out["reasoning"] = thought
            # gpt-oss's template refuses a thought and a text beside tool calls.
            if not ("tool_calls" in out and out["content"]):
                out["thinking"] = thought
            else:
                out.pop("thinking", None)
            break
    return out


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise RequestError(f"{where} is neither a text nor a list of parts.", where)
    texts: list[str] = []
    for i, part in enumerate(cast("Sequence[object]", content)):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise RequestError(f"{where}[{i}] is neither a text nor an object.", where)
        fields = cast("Mapping[str, Any]", part)
        kind = fields.get("type", "text")
        text = fields.get("refusal" if kind == "refusal" else "text")
        if kind not in _TEXT_PARTS:
            raise RequestError(
                f"{where}[{i}] is of type {json.dumps(kind, default=str)[:60]}; this model takes "
                "text only.",
                where,
            )
        if not isinstance(text, str):
            raise RequestError(f"{where}[{i}] has no text.", where)
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise RequestError(f"{where} is not an object.", where)
    out = dict(cast("Mapping[str, Any]", call))
    function = out.get("function", out)
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is not an object.", where)
    function = dict(cast("Mapping[str, Any]", function))
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where} names no function.", where)
    # Clients send the two in any order; models are used to the name coming first.
    first = {"name": function["name"], "arguments": _arguments(function.get("arguments"), where)}
    function = first | {k: v for k, v in function.items() if k not in first}
    if "function" not in out:
        return {"type": "function", "function": function}
    out["function"] = function
    out.setdefault("type", "function")
    return out


def _arguments(arguments: object, where: str) -> Arguments:
    if arguments is None:
        return Arguments({})
    if isinstance(arguments, Arguments):
        return arguments
    if isinstance(arguments, Mapping):
        return Arguments(cast("Mapping[str, Any]", arguments))
    if isinstance(arguments, str):
        if not arguments.strip():
            return Arguments({})
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return Arguments(cast("dict[str, Any]", value), arguments)
    raise RequestError(f"{where}: arguments are not a JSON object.", f"{where}.function.arguments")
