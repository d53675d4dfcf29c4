"""Anthropic's messages, lists of content blocks, into OpenAI's chat messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gristmill.errors import RequestError
from gristmill.serve.dialect import a_list, a_text, an_object, ignored, kind

MAX_BLOCKS = 100_000
"""Of all messages of a request together."""
BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code adds for its maker: new in every request, and nothing
that a model should read. It would leave nothing of a prompt for the prefix cache."""


def system_text(value: object) -> str:
    """The text of ``system``, a string or text blocks."""
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for i, block in enumerate(a_list(value, "system")):
        where = f"system[{i}]"
        fields = an_object(block, where)
        if kind(fields, where) != "text":
            raise RequestError(f"'{where}' must be a text block.", where)
        text = a_text(fields, "text", where)
        if not text.startswith(BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def chat_messages(value: object) -> list[dict[str, object]]:
    """OpenAI's messages for Anthropic's.

    A turn's tool results come before its text. Turns of one role in a row are one turn.
    Raises RequestError that names the block at fault.
    """
    made: list[dict[str, object]] = []
    names: dict[str, str] = {}
    blocks = 0
    for i, message in enumerate(a_list(value, "messages")):
        where = f"messages[{i}]"
        fields = an_object(message, where)
        role = a_text(fields, "role", where)
        if role not in ("user", "assistant", "system"):
            raise RequestError(
                f"'{where}.role' is {role[:60]!r}; it can be 'user', 'assistant' or 'system'.",
                f"{where}.role",
            )
        content = fields.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        given = a_list(content, f"{where}.content")
        blocks += len(given)
        if blocks > MAX_BLOCKS:
            raise RequestError(f"'messages' may hold at most {MAX_BLOCKS} blocks.", "messages")
        turn = _assistant if role == "assistant" else _user
        for each in turn(given, f"{where}.content", role, names):
            _append(made, each)
    return made


def _append(made: list[dict[str, object]], message: dict[str, object]) -> None:
    """Adds a message, to the turn before it where that is of the same role."""
    last = made[-1] if made else None
    if last is None or last["role"] != message["role"] or message["role"] == "tool":
        made.append(message)
        return
    for name in ("content", "reasoning_content"):
        texts = [str(each[name]) for each in (last, message) if each.get(name)]
        if texts or name == "content":
            last[name] = "\n".join(texts)
    calls = [*_calls(last), *_calls(message)]
    if calls:
        last["tool_calls"] = calls


def _calls(message: Mapping[str, object]) -> Sequence[object]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []  # pyright: ignore


def _assistant(
    blocks: Sequence[object], where: str, role: str, names: dict[str, str]
) -> list[dict[str, object]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, object]] = []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        fields = an_object(block, at)
        what = kind(fields, at)
        if what == "text":
            texts.append(a_text(fields, "text", at))
        elif what == "thinking":
            thoughts.append(a_text(fields, "thinking", at))
        elif what == "redacted_thinking":
            a_text(fields, "data", at)  # what another server has sealed, nobody here can read
        elif what == "tool_use":
            calls.append(_call(fields, at, names))
        else:
            raise _unknown(what, at, role)
    message: dict[str, object] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(fields: Mapping[str, object], at: str, names: dict[str, str]) -> dict[str, object]:
    call, name = a_text(fields, "id", at), a_text(fields, "name", at)
    arguments = an_object(fields.get("input"), f"{at}.input")
    names[call] = name
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(
    blocks: Sequence[object], where: str, role: str, names: dict[str, str]
) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    texts: list[str] = []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        fields = an_object(block, at)
        what = kind(fields, at)
        if what == "tool_result" and role == "user":
            results.append(_result(fields, at, names))
        else:
            texts.append(_readable(fields, what, at, role))
    if texts or not results:
        results.append({"role": role, "content": "\n".join(texts)})
    return results


def _result(fields: Mapping[str, object], at: str, names: dict[str, str]) -> dict[str, object]:
    call = a_text(fields, "tool_use_id", at)
    content = fields.get("content")
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    else:
        inner = f"{at}.content"
        parts: list[str] = []
        for i, block in enumerate(a_list(content, inner)):
            part = an_object(block, f"{inner}[{i}]")
            parts.append(_readable(part, kind(part, f"{inner}[{i}]"), f"{inner}[{i}]", "user"))
        text = "\n".join(parts)
    failed = fields.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise RequestError(f"'{at}.is_error' must be true or false.", at)
    if failed:
        text = f"Error: {text}"
    message: dict[str, object] = {"role": "tool", "tool_call_id": call, "content": text}
    if call in names:
        message["name"] = names[call]
    return message


def _readable(fields: Mapping[str, object], what: str, at: str, role: str) -> str:
    """The text of a block that has one."""
    if what == "text":
        return a_text(fields, "text", at)
    reader = _READERS.get(what)
    if reader is None or role != "user":
        raise _unknown(what, at, role)
    return reader(fields, at)


def _document(fields: Mapping[str, object], at: str) -> str:
    """A document given as text, its title and context before it."""
    _no_citations(fields, at)
    source = an_object(fields.get("source"), f"{at}.source")
    what = kind(source, f"{at}.source")
    if what == "text":
        text = a_text(source, "data", f"{at}.source")
    elif what == "content":
        text = _content(source.get("content"), f"{at}.source.content")
    else:
        raise RequestError(
            f"'{at}' is a document of type {what!r}; this server reads documents given as text.", at
        )
    head = [fields.get(name) for name in ("title", "context")]
    for name, value in zip(("title", "context"), head, strict=True):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"'{at}.{name}' must be a string.", at)
    return "\n".join([*(str(each) for each in head if each), text])


def _search_result(fields: Mapping[str, object], at: str) -> str:
    _no_citations(fields, at)
    head = [a_text(fields, "title", at), a_text(fields, "source", at)]
    return "\n".join([*head, _content(fields.get("content"), f"{at}.content")])


_READERS: Mapping[str, Callable[[Mapping[str, object], str], str]] = {
    "document": _document,
    "search_result": _search_result,
}


def _content(value: object, at: str) -> str:
    """A string, or text blocks."""
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for i, block in enumerate(a_list(value, at)):
        fields = an_object(block, f"{at}[{i}]")
        what = kind(fields, f"{at}[{i}]")
        if what != "text":
            raise _unknown(what, f"{at}[{i}]", "user")
        texts.append(a_text(fields, "text", f"{at}[{i}]"))
    return "\n".join(texts)


def _no_citations(fields: Mapping[str, object], at: str) -> None:
    asked = fields.get("citations")
    if asked is not None and an_object(asked, f"{at}.citations").get("enabled"):
        raise ignored(f"{at}.citations", at)


def _unknown(what: str, at: str, role: str) -> RequestError:
    if what == "image":
        return RequestError(f"'{at}' is an image; this model takes text only.", at)
    return RequestError(
        f"'{at}' is a block of type {what!r}, which this server does not take in the content of "
        f"'{role}'.",
        at,
    )
