"""Tools and tool choice of the Responses API in the chat route's form."""

from __future__ import annotations

from gristmill.errors import RequestError
from gristmill.serve.dialect import a_list, a_text, an_object, ignored


def chat_tools(value: object) -> list[dict[str, object]]:
    """OpenAI's chat tools. Raises RequestError for those that OpenAI's servers would run."""
    made: list[dict[str, object]] = []
    for i, tool in enumerate(a_list(value, "tools")):
        at = f"tools[{i}]"
        fields = an_object(tool, at)
        what = fields.get("type")
        if what != "function":
            raise RequestError(
                f"'{at}' is of type {str(what)[:60]!r}; this server takes tools of type "
                "'function'.",
                at,
            )
        if fields.get("defer_loading"):
            raise ignored(f"{at}.defer_loading", at)
        function: dict[str, object] = {"name": a_text(fields, "name", at)}
        for name in ("description", "parameters", "strict"):
            if fields.get(name) is not None:
                function[name] = fields[name]
        made.append({"type": "function", "function": function})
    return made


def chat_choice(value: object) -> object:
    """The chat route's ``tool_choice``."""
    if isinstance(value, str):
        return value
    fields = an_object(value, "tool_choice")
    what = fields.get("type")
    if what == "function":
        name = a_text(fields, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}
    if what == "allowed_tools":
        return fields
    raise RequestError(
        f"'tool_choice' is of type {str(what)[:60]!r}; it can be 'none', 'auto', 'required', or "
        "an object of type 'function' or 'allowed_tools'.",
        "tool_choice",
    )
