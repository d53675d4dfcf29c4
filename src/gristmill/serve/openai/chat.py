"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.answers import Answer, Group, Part, Write
from gristmill.serve.chat_request import ChatFields, chat_job, parse_chat
from gristmill.serve.exchange import promise
from gristmill.serve.limits import read_object
from gristmill.serve.openai.chunks import Mould, chunk, usage_chunk
from gristmill.serve.openai.logprobs import chat_form, prompt_form
from gristmill.serve.openai.usage import timings, usage
from gristmill.serve.run import Job, new_id, reply
from gristmill.serve.state import State
from gristmill.serve.stream import OpenAiEvents
from gristmill.types import CallDelta

CHUNK = "chat.completion.chunk"


async def chat_completions(http: HttpRequest) -> Response:
    """Answers a chat."""
    state: State = http.app.state.gristmill
    state.open()
    fields = parse_chat(await read_object(http, state.options.max_body_bytes))
    if fields.stream:
        promise(http, OpenAiEvents())
    job = await chat_job(http, fields, new_id("chatcmpl", fields))
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
        content = "".join(answer.content)
        message: dict[str, object] = {"role": "assistant", "content": content}
        message |= self._reasoning("".join(answer.reasoning))
        if answer.calls:
            message["content"] = content or None
            message["tool_calls"] = [
                _call(call.id, call.name, call.arguments) for call in answer.calls
            ]
        choice: dict[str, object] = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": _finish(answer),
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
        moulds: dict[int, Mould] = {}
        fields = self.fields
        plain = not (
            fields.logprobs
            or fields.return_token_ids
            or fields.timings_per_token
            or fields.continuous_usage
        )

        def write(answer: Answer, part: Part, ended: bool) -> list[object]:
            mould = moulds.get(answer.index)
            if mould and part.content and not (ended or part.reasoning or part.calls):
                return [mould.fill(part.content)]
            if part.progress is not None:
                role: dict[str, object] = {"role": "assistant", "content": None}
                return [self._chunk(group, answer, role, part)]
            made: list[object] = []
            if answer.index not in opened:
                opened.add(answer.index)
                made.append(self._opening(group, answer))
                if plain:
                    hole: dict[str, object] = {"content": Mould.HOLE}
                    moulds[answer.index] = Mould(self._chunk(group, answer, hole, part))
            reasoning = self._reasoning(part.reasoning)
            telling = part.logprobs if self.fields.logprobs else ()
            ids = self.fields.return_token_ids and part.tokens
            if part.content or reasoning or part.calls or telling or ids:
                delta: dict[str, object] = dict(reasoning)
                if part.content or not (reasoning or part.calls):
                    delta["content"] = part.content
                if part.calls:
                    delta["tool_calls"] = [_call_delta(call) for call in part.calls]
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
        return chunk(self.job, group, answer, CHUNK, body, part, closing, _finish(answer))

    def ending(self, group: Group) -> list[object]:
        """The chunk of usage, if asked for."""
        return usage_chunk(self.job, group, CHUNK)


def _finish(answer: Answer) -> str | None:
    """Why the answer ended, in OpenAI's words."""
    return "tool_calls" if answer.calls and answer.finish == "stop" else answer.finish


def _call(id_: str, name: str, arguments: str) -> dict[str, object]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _call_delta(delta: CallDelta) -> dict[str, object]:
    """A call's first delta has all of its fields, the others only more of its arguments."""
    if delta.id is not None:
        return {"index": delta.index, **_call(delta.id, delta.name or "", delta.arguments)}
    return {"index": delta.index, "function": {"arguments": delta.arguments}}
