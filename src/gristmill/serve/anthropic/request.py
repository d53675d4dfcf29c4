"""The body of ``POST /v1/messages``, and the chat it asks for.

Fields of this API are honoured or refused by name. Those it does not know are gristmill's own
for every dialect (``min_p``, ``seed``, ``chat_template_kwargs``, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from gristmill.errors import RequestError
from gristmill.serve.anthropic.blocks import chat_messages, system_text
from gristmill.serve.anthropic.tools import chat_choice, chat_tools
from gristmill.serve.chat_request import ChatFields, parse_chat
from gristmill.serve.dialect import (
    a_list,
    an_object,
    ignored,
    kind,
    maybe_object,
    refuse,
    refuse_chat_only,
    renamed,
)
from gristmill.serve.fields import Fields, Flag, Number, Short, Whole
from gristmill.serve.requests import MAX_TOKENS

API = "/v1/messages"
NAMES = {
    "thinking_budget_tokens": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}
"""Names of the chat route → this API's, for errors."""

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "container": (),
    "mcp_servers": ([],),
    "inference_geo": ("global",),
    "speed": ("standard",),
    "billing_policy": (),
    "compaction": (),
    "fallbacks": (),
    "fallback_credit_token": (),
    "thread": (),
    "max_completion_tokens": (),
    "n_predict": (),
    "logprobs": (False,),
    "top_logprobs": (),
    "stop": ([],),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "user": ("",),
}
_PASSED_OVER = frozenset(
    {"cache_control", "service_tier", "user_profile_id", "workspace_id", "betas"}
)
"""Fields about billing, about who asks, and about caching, which needs no asking here."""
_OURS = frozenset(
    {
        "model", "max_tokens", "messages", "system", "stop_sequences", "stream", "tools",
        "tool_choice", "thinking", "output_config", "output_format", "metadata", "diagnostics",
        "context_management", "temperature", "top_p", "top_k",
    }
)  # fmt: skip


class MessagesFields(Fields):
    """The body. What is of any kind here is looked into when it is translated."""

    model: Short | None = None
    max_tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)]
    messages: Annotated[list[Any], Field(min_length=1)]
    system: Any = None
    stop_sequences: Any = None
    stream: Flag = False
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None
    output_format: Any = None
    metadata: Any = None
    context_management: Any = None
    diagnostics: Any = None


class CountFields(MessagesFields):
    """The body of ``/v1/messages/count_tokens``: the same, and nothing is generated."""

    max_tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)] = 1


@dataclass(frozen=True)
class Asked:
    """A checked request."""

    fields: MessagesFields
    chat: ChatFields
    show_thinking: bool = True


def parse_messages(body: Mapping[str, object], form: type[MessagesFields]) -> Asked:
    """The checked request. Raises RequestError that names this API's field."""
    refuse(body, _REFUSED, API)
    refuse_chat_only(body, API)
    fields = form.parse(body)
    extras = {k: v for k, v in body.items() if k not in _OURS | _PASSED_OVER}
    chat: dict[str, object] = {
        **extras,
        "model": fields.model,
        "max_tokens": fields.max_tokens,
        "stop": fields.stop_sequences,
        "stream": fields.stream,
        "return_progress": fields.stream,  # tells at the start how much of the prompt was cached
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_k": fields.top_k,
    }
    _refuse_unmade(fields)
    chat |= _conversation(fields)
    chat |= _tools(fields)
    thinking, shown = _thinking(fields, chat)
    chat |= thinking | _output(fields) | _metadata(fields)
    with renamed(NAMES):
        return Asked(fields, parse_chat(chat), shown)


def _conversation(fields: MessagesFields) -> dict[str, object]:
    messages = chat_messages(fields.messages)
    system = system_text(fields.system) if fields.system is not None else ""
    last = messages[-1]
    made: dict[str, object] = {}
    if last["role"] == "assistant":
        if "tool_calls" in last:
            raise RequestError(
                "The last of 'messages' calls a tool; a 'tool_result' must follow it.", "messages"
            )
        made = {"continue_final_message": True, "add_generation_prompt": False}
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {**made, "messages": messages}


def _tools(fields: MessagesFields) -> dict[str, object]:
    made: dict[str, object] = {}
    if fields.tools:
        made["tools"] = chat_tools(fields.tools)
    if fields.tool_choice is not None:
        made["tool_choice"], several = chat_choice(fields.tool_choice)
        if not several:
            made["parallel_tool_calls"] = False
    return made


def _thinking(fields: MessagesFields, chat: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """What the template is told, and whether thoughts are shown. Without ``thinking`` the
    model does as its template has it."""
    if fields.thinking is None:
        return {}, True
    asked = an_object(fields.thinking, "thinking")
    what = kind(asked, "thinking")
    if what not in ("enabled", "disabled", "adaptive"):
        raise RequestError(
            f"'thinking.type' is {what!r}; it can be 'enabled', 'disabled' or 'adaptive'.",
            "thinking",
        )
    display = asked.get("display")
    if display not in (None, "summarized", "omitted"):
        raise RequestError(
            "'thinking.display' can be 'summarized' or 'omitted'.", "thinking.display"
        )
    given = maybe_object(chat.get("chat_template_kwargs"), "chat_template_kwargs")
    made: dict[str, object] = {
        "chat_template_kwargs": {"enable_thinking": what != "disabled", **given}
    }
    budget = asked.get("budget_tokens")
    if what == "enabled" and budget is None:
        raise RequestError("'thinking.budget_tokens' is missing.", "thinking.budget_tokens")
    if what == "enabled":
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
            raise RequestError(
                "'thinking.budget_tokens' must be a whole number, 0 or more.",
                "thinking.budget_tokens",
            )
        if budget < fields.max_tokens:  # else the whole answer ends before the thought would
            made["thinking_budget_tokens"] = budget
    return made, display != "omitted"


def _output(fields: MessagesFields) -> dict[str, object]:
    config = maybe_object(fields.output_config, "output_config")
    made: dict[str, object] = {}
    effort = config.get("effort")
    if effort is not None:
        made["reasoning_effort"] = effort
    wanted = config.get("format")
    where = "output_config.format"
    if wanted is None:
        wanted, where = fields.output_format, "output_format"
    if wanted is not None:
        given = an_object(wanted, where)
        if kind(given, where) != "json_schema":
            raise RequestError(f"'{where}.type' must be 'json_schema'.", where)
        schema = an_object(given.get("schema"), f"{where}.schema")
        inner = {"name": "output", "schema": schema, "strict": True}
        made["response_format"] = {"type": "json_schema", "json_schema": inner}
    return made


def _metadata(fields: MessagesFields) -> dict[str, object]:
    if fields.metadata is None:
        return {}
    user = an_object(fields.metadata, "metadata").get("user_id")
    if user is not None and not isinstance(user, str):
        raise RequestError("'metadata.user_id' must be a string.", "metadata.user_id")
    return {"user": user or ""}


def _refuse_unmade(fields: MessagesFields) -> None:
    """Edits of the context that would have to be made, and comparisons that are not."""
    if fields.context_management is not None:
        where = "context_management"
        edits = an_object(fields.context_management, where).get("edits")
        for i, edit in enumerate([] if edits is None else a_list(edits, f"{where}.edits")):
            at = f"{where}.edits[{i}]"
            given = an_object(edit, at)
            keeps_all = given.get("keep") == "all" or given.get("keep") == {"type": "all"}
            if not (kind(given, at).startswith("clear_thinking") and keeps_all):
                raise ignored(at, where)
    if fields.diagnostics is not None:
        name = "diagnostics.previous_message_id"
        if an_object(fields.diagnostics, "diagnostics").get("previous_message_id") is not None:
            raise ignored(name)
