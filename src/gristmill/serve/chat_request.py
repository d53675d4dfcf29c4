"""A chat as a client asks for it: the fields, their checks, and the job they make.

The other dialects' chat routes translate their bodies into these fields.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.serve.constraints import settle
from gristmill.serve.fields import Flag, Short, Whole
from gristmill.serve.protocol import ChatInput
from gristmill.serve.requests import (
    MAX_LOGPROBS,
    MAX_TOKENS,
    Generation,
    refuse_unsupported,
    truncate,
)
from gristmill.serve.run import Job, now, sampling_of
from gristmill.serve.state import State
from gristmill.serve.tool_request import choose
from gristmill.text.reasoning.switch import EFFORTS

REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")
"""llama-server's names: split off (auto, deepseek), left in the content, or both."""
MAX_MESSAGES = 16_384
MAX_TOOLS = 1024


class ChatFields(Generation):
    """The body. ``messages`` and ``tools`` are looked into by the text room."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: Any = None
    parallel_tool_calls: Flag = True
    max_completion_tokens: Annotated[Whole, Field(ge=-1, le=MAX_TOKENS)] | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=256, default_factory=dict)]
    chat_template: Any = None
    reasoning_effort: Short | None = None
    reasoning_format: Short | None = None
    include_reasoning: Flag = True
    documents: list[Any] | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    echo: Flag = False

    @property
    def limit(self) -> int | None:
        """``max_completion_tokens``, else the older names."""
        if self.max_completion_tokens is None:
            return super().limit
        return None if self.max_completion_tokens == -1 else self.max_completion_tokens


def check(fields: ChatFields) -> None:
    """What no single field can tell. Raises ``RequestError``."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if fields.chat_template is not None:
        raise RequestError(
            "'chat_template' is not taken from requests; start the server with --chat-template.",
            "chat_template",
        )
    if fields.echo:
        raise RequestError("'echo' belongs to /v1/completions.", "echo")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise RequestError(
            "'continue_final_message' needs 'add_generation_prompt' to be false.",
            "continue_final_message",
        )
    choose(fields.tools, fields.tool_choice)
    if fields.reasoning_format not in (None, *REASONING_FORMATS):
        raise RequestError(
            f"'reasoning_format' must be one of {', '.join(REASONING_FORMATS)}.",
            "reasoning_format",
        )
    if fields.reasoning_effort not in (None, *EFFORTS):
        raise RequestError(
            f"'reasoning_effort' must be one of {', '.join(EFFORTS)}.", "reasoning_effort"
        )


def chat_input(fields: ChatFields, context: int) -> ChatInput:
    """What the template is given."""
    variables: dict[str, object] = dict(fields.chat_template_kwargs)
    if fields.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", fields.reasoning_effort)
    if fields.thinking_budget is not None and fields.thinking_budget >= 0:
        variables.setdefault("thinking_budget", fields.thinking_budget)
    if fields.documents is not None:
        variables.setdefault("documents", fields.documents)
    choice = choose(fields.tools, fields.tool_choice)
    form = fields.reasoning_format
    return ChatInput(
        messages=fields.messages,
        tools=list(choice.tools),
        must_call=choice.must,
        parallel=fields.parallel_tool_calls,
        variables=variables,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        split_reasoning=None if form is None else form != "none",
        inline_reasoning=None if form is None else form == "deepseek-legacy",
        most=context if fields.truncate_prompt_tokens is None else None,
    )


def parse_chat(body: dict[str, object]) -> ChatFields:
    """The checked fields of a body in OpenAI's form. Raises RequestError."""
    refuse_unsupported(body)
    fields = ChatFields.parse(body)
    check(fields)
    if fields.n_probs and not fields.logprobs:  # llama-server's name for both
        return fields.model_copy(update={"logprobs": True, "top_logprobs": fields.n_probs})
    return fields


async def chat_job(http: HttpRequest, fields: ChatFields, job_id: str) -> Job:
    """Everything the engine must be told of a chat: its prompt rendered, its sampling checked.

    Raises: NotFoundError, OverloadError, RequestError.
    """
    state: State = http.app.state.gristmill
    served, model = await state.acquire(http, fields.model)
    if served.chat is None:
        raise RequestError(
            "This model has no chat template; use /v1/completions, or start the server with "
            "--chat-template."
        )
    wanted = (fields.top_logprobs or 0) if fields.logprobs else None
    chosen = await sampling_of(state, fields, served, wanted)
    prompt = await state.in_worker(served.chat, chat_input(fields, served.context))
    prompt = replace(prompt, ids=truncate(prompt.ids, fields, served.context))
    chosen = replace(chosen, constraint=prompt.constraint, shown_tokens=prompt.shown)
    # Where a template has no switch, a budget of nothing ends a thought as it begins.
    budget = 0 if fields.reasoning_effort == "none" else state.options.reasoning_budget
    chosen = await settle(served, chosen, fields, prompt, budget)
    return Job(state, served, fields, model, job_id, [prompt], chosen, now())
