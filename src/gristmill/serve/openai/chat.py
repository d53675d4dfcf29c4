"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.fields import Flag, Short, Whole
from gristmill.serve.limits import read_object
from gristmill.serve.openai.logprobs import chat_form, prompt_form
from gristmill.serve.openai.run import Job, chunk, new_id, now, reply, usage_chunk
from gristmill.serve.openai.usage import timings, usage
from gristmill.serve.protocol import ChatInput, Prompt
from gristmill.serve.requests import (
    MAX_LOGPROBS,
    MAX_TOKENS,
    Generation,
    refuse_unsupported,
    sampling,
    truncate,
)
from gristmill.serve.state import State

MAX_MESSAGES = 16_384
MAX_TOOLS = 1024
CHUNK = "chat.completion.chunk"


class ChatFields(Generation):
    """The body. ``messages`` and ``tools`` are looked into by the text room."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS, default_factory=list)]
    tool_choice: Any = None
    max_completion_tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1, le=MAX_TOKENS)] | None = None
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
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return super().limit


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
    if not all(isinstance(tool, dict) for tool in fields.tools):
        raise RequestError("'tools' must be a list of objects.", "tools")
    _check_tool_choice(fields.tool_choice)
    if fields.reasoning_format not in (None, "none", "auto", "deepseek"):
        raise RequestError(
            "'reasoning_format' must be 'none', 'auto' or 'deepseek'.", "reasoning_format"
        )


def _check_tool_choice(choice: object) -> None:
    if choice in (None, "auto", "none"):
        return
    if choice == "required" or isinstance(choice, dict):
        raise RequestError(
            "'tool_choice' can be 'auto' or 'none' in this version; a forced call would have "
            "been ignored.",
            "tool_choice",
        )
    raise RequestError("'tool_choice' must be 'auto' or 'none'.", "tool_choice")


def chat_input(fields: ChatFields, context: int) -> ChatInput:
    """What the template is given."""
    variables: dict[str, object] = dict(fields.chat_template_kwargs)
    if fields.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", fields.reasoning_effort)
        if fields.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    if fields.documents is not None:
        variables.setdefault("documents", fields.documents)
    return ChatInput(
        messages=fields.messages,
        tools=() if fields.tool_choice == "none" else fields.tools,
        variables=variables,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        split_reasoning=fields.reasoning_format != "none",
        most=context if fields.truncate_prompt_tokens is None else None,
    )


async def chat_completions(http: HttpRequest) -> Response:
    """Answers a chat."""
    state: State = http.app.state.gristmill
    state.ready()
    body = await read_object(http, state.options.max_body_bytes)
    refuse_unsupported(body)
    fields = ChatFields.parse(body)
    check(fields)
    served, model = state.model(fields.model)
    if served.chat is None:
        raise RequestError(
            "This model has no chat template; use /v1/completions, or start the server with "
            "--chat-template."
        )
    wanted = (fields.top_logprobs or 0) if fields.logprobs else None
    chosen = sampling(fields, served, wanted)
    prompt = await state.in_worker(served.chat, chat_input(fields, served.context))
    prompt = Prompt(truncate(prompt.ids, fields, served.context), prompt.reasoning)
    job = Job(state, served, fields, model, new_id("chatcmpl", fields), [prompt], chosen, now())
    shape = ChatShape(job, fields)
    return await reply(http, job, shape.writer, shape.whole, shape.ending)


class ChatShape:
    """Makes the bodies and chunks of one chat."""

    def __init__(self, job: Job, fields: ChatFields) -> None:
        self.job = job
        self.fields = fields
        option = job.state.options.reasoning_field
        self.reasoning_names = ("reasoning", "reasoning_content") if option == "both" else (option,)

    def whole(self, group: Group) -> dict[str, object]:
        """``chat.completion``."""
        body = self.job.envelope("chat.completion")
        body["choices"] = [self._choice(answer) for answer in group.answers]
        body["usage"] = usage(group)
        took = timings(group.answers[0])
        if took is not None:
            body["timings"] = took
        first = group.answers[0]
        if first.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_form(first.prompt_logprobs, self.job.served.tokenizer)
        if self.fields.return_token_ids:
            body["prompt_token_ids"] = list(self.job.prompts[0].ids)
        return body

    def _choice(self, answer: Answer) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": "".join(answer.content)}
        message |= self._reasoning("".join(answer.reasoning))
        choice: dict[str, object] = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish,
            "stop_reason": answer.stopped_by,
        }
        if self.fields.return_token_ids:
            choice["token_ids"] = list(answer.tokens)
        return choice

    def _reasoning(self, text: str) -> dict[str, object]:
        if not text or not self.fields.include_reasoning:
            return {}
        return dict.fromkeys(self.reasoning_names, text)

    def _logprobs(self, entries: Sequence[Any]) -> dict[str, object] | None:
        if not self.fields.logprobs:
            return None
        return chat_form(entries, self.job.served.tokenizer)

    def writer(self, group: Group) -> Write:
        """The role first, then text as it comes, then an empty delta with the reason."""
        opened: set[int] = set()

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            made: list[object] = []
            if answer.index not in opened:
                opened.add(answer.index)
                made.append(self._opening(group, answer))
            reasoning = self._reasoning(part.reasoning)
            telling = part.logprobs if self.fields.logprobs else ()
            ids = self.fields.return_token_ids and part.tokens
            if part.content or reasoning or telling or ids:
                delta: dict[str, object] = dict(reasoning)
                if part.content or not reasoning:
                    delta["content"] = part.content
                made.append(self._chunk(group, answer, delta, part))
            if ended:
                made.append(self._chunk(group, answer, {}, None, closing=True))
            return made

        return write

    def _opening(self, group: Group, answer: Answer) -> dict[str, object]:
        opening = self._chunk(group, answer, {"role": "assistant", "content": ""}, None)
        if self.fields.return_token_ids:
            opening["prompt_token_ids"] = list(self.job.prompts[0].ids)
        return opening

    def _chunk(
        self,
        group: Group,
        answer: Answer,
        delta: dict[str, object],
        part: Part | None,
        closing: bool = False,
    ) -> dict[str, object]:
        logprobs = self._logprobs(part.logprobs) if part and part.logprobs else None
        body: dict[str, object] = {"delta": delta, "logprobs": logprobs}
        return chunk(self.job, group, answer, CHUNK, body, part, closing)

    def ending(self, group: Group) -> list[object]:
        """The chunk of usage, if asked for."""
        return usage_chunk(self.job, group, CHUNK)
