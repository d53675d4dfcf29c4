"""The body of ``POST /v1/responses``, and the chat it asks for.

Fields of this API are honoured or refused by name. Those it does not know are gristmill's own
for every dialect (``min_p``, ``seed``, ``stop``, ``chat_template_kwargs``, …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from gristmill.errors import RequestError
from gristmill.serve.chat_request import ChatFields, parse_chat
from gristmill.serve.dialect import (
    a_text,
    an_object,
    ignored,
    maybe_object,
    refuse,
    refuse_chat_only,
    renamed,
)
from gristmill.serve.fields import Fields, Flag, Number, Short, Text, Whole
from gristmill.serve.requests import MAX_LOGPROBS, MAX_TOKENS
from gristmill.serve.responses.items import chat_messages, input_items
from gristmill.serve.responses.store import Store
from gristmill.serve.responses.tools import chat_choice, chat_tools

API = "/v1/responses"
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""Names of the chat route → this API's, for errors."""
LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
_INCLUDES = frozenset(
    {
        LOGPROBS, SEALED, "file_search_call.results", "web_search_call.results",
        "web_search_call.action.sources", "message.input_image.image_url",
        "computer_call_output.output.image_url", "code_interpreter_call.outputs",
    }
)  # fmt: skip
"""What else may be included there never is here: the tools it comes from are refused."""

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
    "access_programs": (),
    "image": (),
    "background_options": ({}, {"completion_window": "soonest"}),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "max_tokens": (),
    "max_completion_tokens": (),
    "n_predict": (),
    "messages": (),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "reasoning_effort": (),
}
_PASSED_OVER = frozenset(
    {
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "max_tool_calls",
        "stream_options",
    }
)
"""Fields about billing and caching, and a limit on tools that are not run here."""


class ResponsesFields(Fields):
    """The body. What is of any kind here is looked into when it is translated."""

    model: Short | None = None
    input: Any = None
    instructions: Text | None = None
    previous_response_id: Short | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Flag = True
    max_output_tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[Short], Field(max_length=64, default_factory=list)]
    text: Any = None
    reasoning: Any = None
    truncation: Short | None = None
    metadata: Any = None
    store: Flag | None = None
    stream: Flag = False
    stream_options: Any = None
    background: Flag = False
    user: Text = ""
    safety_identifier: Text = ""
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Short | None = None
    max_tool_calls: Annotated[Whole, Field(ge=0, le=MAX_TOKENS)] | None = None
    service_tier: Short | None = None


class CountFields(ResponsesFields):
    """The body of ``/v1/responses/input_tokens``: the same, and nothing is generated."""


_OURS = frozenset(ResponsesFields.model_fields) | _PASSED_OVER


@dataclass(frozen=True)
class Asked:
    """A checked request."""

    fields: ResponsesFields
    chat: ChatFields
    items: Sequence[Mapping[str, object]]
    """Its own input."""
    metadata: Mapping[str, str]
    summary: str | None
    """The kind of summary of the reasoning that is wanted in the place of its text."""
    stored: bool

    @property
    def logprobs(self) -> bool:
        """Whether output texts come with log-probabilities."""
        return self.chat.logprobs

    @property
    def sealed(self) -> bool:
        """Whether thoughts come with what a client without a store can pass back."""
        return SEALED in self.fields.include


def parse_response(body: Mapping[str, object], store: Store, mark: str) -> Asked:
    """The checked request; ``mark`` is part of the ids of its items.

    Raises RequestError that names this API's field.
    """
    refuse(body, _REFUSED, API)
    refuse_chat_only({k: v for k, v in body.items() if k != "stream_options"}, API)
    fields = ResponsesFields.parse(body)
    kept = _stored(fields, store)
    items = _resolved(input_items(fields.input, mark), store)
    before = store.conversation(fields.previous_response_id) if fields.previous_response_id else []
    effort, summary = _reasoning(fields)
    logprobs = _logprobs(fields)
    chat: dict[str, object] = {
        **{k: v for k, v in body.items() if k not in _OURS},
        "model": fields.model,
        "messages": chat_messages([*before, *items], fields.instructions),
        "max_completion_tokens": fields.max_output_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "stream": fields.stream,
        "return_progress": fields.stream,  # so that a stream begins before its first token
        "user": fields.user or fields.safety_identifier,
        "tools": chat_tools(fields.tools) if fields.tools else None,
        "tool_choice": None if fields.tool_choice is None else chat_choice(fields.tool_choice),
        "reasoning_effort": effort,
        "response_format": _format(fields),
        "logprobs": logprobs,
        "top_logprobs": fields.top_logprobs if logprobs else None,
    }
    if not fields.parallel_tool_calls:
        chat["parallel_tool_calls"] = False
    with renamed(NAMES):
        checked = parse_chat(chat)
    return Asked(fields, checked, items, _metadata(fields), summary, kept)


def _stored(fields: ResponsesFields, store: Store) -> bool:
    """Whether it is kept; and the checks of the fields about how it runs."""
    if fields.store and not store.most_bytes:
        raise RequestError("'store' is not possible: this server keeps no responses.", "store")
    kept = bool(store.most_bytes) if fields.store is None else fields.store
    if fields.background and not kept:
        raise RequestError("'background' needs 'store' to be true.", "background")
    if fields.truncation not in (None, "disabled", "auto"):
        raise RequestError("'truncation' can be 'disabled' or 'auto'.", "truncation")
    options = maybe_object(fields.stream_options, "stream_options")
    if options.get("include_obfuscation"):
        name = "stream_options.include_obfuscation"
        raise ignored(name)
    return kept


def _resolved(items: Sequence[Mapping[str, object]], store: Store) -> list[Mapping[str, object]]:
    """The items, stored ones in the place of references to them."""
    references = [str(item["id"]) for item in items if item["type"] == "item_reference"]
    found = store.items(references)
    return [found[str(item["id"])] if item["type"] == "item_reference" else item for item in items]


def _reasoning(fields: ResponsesFields) -> tuple[object, str | None]:
    asked = maybe_object(fields.reasoning, "reasoning")
    if asked.get("context") not in (None, "auto"):
        raise ignored("reasoning.context")
    if asked.get("mode") not in (None, "standard"):
        raise ignored("reasoning.mode")
    summary = asked.get("summary", asked.get("generate_summary"))
    if summary not in (None, "auto", "detailed"):
        raise RequestError(
            "'reasoning.summary' can be 'auto' or 'detailed': it is the reasoning itself.",
            "reasoning.summary",
        )
    return asked.get("effort"), None if summary is None else str(summary)


def _logprobs(fields: ResponsesFields) -> bool:
    for name in fields.include:
        if name not in _INCLUDES:
            raise RequestError(f"'include' holds {name[:100]!r}, which nobody knows.", "include")
    return LOGPROBS in fields.include or bool(fields.top_logprobs)


def _format(fields: ResponsesFields) -> object:
    """``text.format`` in the chat route's form."""
    text = maybe_object(fields.text, "text")
    if text.get("verbosity") not in (None, "medium"):
        raise ignored("text.verbosity")
    wanted = text.get("format")
    if wanted is None:
        return None
    given = dict(an_object(wanted, "text.format"))
    kind = a_text(given, "type", "text.format")
    if kind != "json_schema":
        return {"type": kind}
    del given["type"]
    an_object(given.get("schema"), "text.format.schema")
    return {"type": kind, "json_schema": given}


def _metadata(fields: ResponsesFields) -> Mapping[str, str]:
    given = maybe_object(fields.metadata, "metadata")
    if len(given) > 16:
        raise RequestError("'metadata' may hold at most 16 pairs.", "metadata")
    made: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(value, str) or len(value) > 512 or len(key) > 64:
            raise RequestError(
                "'metadata' takes strings of at most 512 characters, under keys of at most 64.",
                "metadata",
            )
        made[key] = value
    return made
