"""``POST /api/generate`` and ``/api/chat``."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.chat_request import chat_job, parse_chat
from gristmill.serve.completion_request import completion_job, parse_completion
from gristmill.serve.dialect import renamed
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import read_object
from gristmill.serve.ollama.lines import Lines, stamp
from gristmill.serve.ollama.request import (
    NAMES,
    Common,
    GenerateFields,
    OllamaChatFields,
    messages,
    thinking,
)
from gristmill.serve.ollama.shape import Body, Shape, chat_body, durations, generate_body
from gristmill.serve.protocol import Served
from gristmill.serve.requests import refuse_hopeless
from gristmill.serve.run import Job, new_id, reply
from gristmill.serve.state import State


async def generate(http: HttpRequest) -> Response:
    """Answers one prompt; without one, loads or unloads the model."""
    state: State = http.app.state.gristmill
    state.open()
    began = time.monotonic()
    fields = GenerateFields.parse(await read_object(http, state.options.max_body_bytes))
    fields.check()
    if not fields.prompt:
        return await _load(http, state, fields, began, generate_body)
    served, _ = await state.acquire(http, fields.model, fields.keep())
    loaded = time.monotonic()
    with renamed(NAMES):
        if fields.raw or fields.suffix or served.chat is None:
            job = await _raw_job(http, fields, served)
        else:
            job = await _turn_job(http, fields, served)
    shape = Shape(
        job,
        generate_body,
        began,
        loaded,
        fields.logprobs,
        context=not (fields.raw or fields.suffix),
    )
    return await reply(http, job, shape.writer, shape.whole, shape.ending, Lines())


async def chat(http: HttpRequest) -> Response:
    """Answers a chat; without messages, loads or unloads the model."""
    state: State = http.app.state.gristmill
    state.open()
    began = time.monotonic()
    fields = OllamaChatFields.parse(await read_object(http, state.options.max_body_bytes))
    if not fields.messages:
        return await _load(http, state, fields, began, chat_body)
    served, _ = await state.acquire(http, fields.model, fields.keep())
    loaded = time.monotonic()
    with renamed(NAMES):
        body = fields.shared(served) | thinking(fields.think) | _scores(fields)
        body["messages"] = messages(fields.messages)
        body["tools"] = fields.tools
        asked = parse_chat(body)
        job = await chat_job(http, asked, new_id("chat", asked))
    shape = Shape(job, chat_body, began, loaded, fields.logprobs)
    return await reply(http, job, shape.writer, shape.whole, shape.ending, Lines())


def _scores(fields: Common) -> dict[str, object]:
    found: dict[str, object] = {"logprobs": fields.logprobs}
    if fields.top_logprobs is not None:
        found["top_logprobs"] = fields.top_logprobs
    return found


async def _raw_job(http: HttpRequest, fields: GenerateFields, served: Served) -> Job:
    """The prompt as it is; with a suffix, the gap before it; or, for a model without a template,
    after the system's text."""
    state: State = http.app.state.gristmill
    body = fields.shared(served)
    if fields.suffix:
        body["prompt"] = await state.in_worker(partial(_gap, served), fields)
    else:
        body["prompt"] = f"{fields.system}\n\n{fields.prompt}" if fields.system else fields.prompt
    if fields.logprobs:
        body["logprobs"] = fields.top_logprobs or 0
    asked = parse_completion(body)
    job = await completion_job(http, asked, new_id("gen", asked))
    return _continued(job, fields, served)


def _gap(served: Served, fields: GenerateFields) -> list[int]:
    """A prompt that asks for what stands between the prompt and its suffix."""
    if served.infill is None:
        raise RequestError(
            f"The model '{fields.model}' does not support insert: it has no tokens for filling in "
            "a middle.",
            "suffix",
        )

    def ids(text: str) -> list[int]:
        refuse_hopeless(text, served.tokenizer, served.context)
        return served.tokenizer.encode(text, add_special=False, parse_special=False)

    return served.infill.prompt(ids(fields.prompt), ids(fields.suffix))


async def _turn_job(http: HttpRequest, fields: GenerateFields, served: Served) -> Job:
    """The prompt as a turn of the model's template, after an earlier conversation, if given."""
    body = fields.shared(served) | thinking(fields.think) | _scores(fields)
    body["messages"] = fields.messages()
    asked = parse_chat(body)
    job = await chat_job(http, asked, new_id("gen", asked))
    return _continued(job, fields, served)


def _continued(job: Job, fields: GenerateFields, served: Served) -> Job:
    """The job with ``context`` before its prompt."""
    context = fields.context
    if not context:
        return job
    vocab = served.tokenizer.vocab_size
    if not all(0 <= token < vocab for token in context):
        raise RequestError(f"'context' must hold token ids from 0 to {vocab - 1}.", "context")
    prompt = job.prompts[0]
    first = served.tokenizer.encode("", add_special=True, parse_special=False)
    rest = prompt.ids
    if first and rest[: len(first)] == tuple(first):  # the beginning is not begun twice
        rest = rest[len(first) :]
    return replace(job, prompts=[replace(prompt, ids=(*context, *rest))])


async def _load(
    http: HttpRequest, state: State, fields: Common, began: float, body: Body
) -> Response:
    """No prompt: the model is only to be there, or, with ``keep_alive`` 0, to go.

    One that the server was started with stays, and the answer says that it is loaded.
    """
    keep = fields.keep()
    entry = await state.entry(fields.model) if keep == 0 else None
    if entry is not None and not entry.pinned:
        reason = "unload"
        await state.host.let_go(entry)
    else:
        reason = "load"
        await state.acquire(http, fields.model, keep)
    return JsonResponse(
        {
            "model": fields.model,
            "created_at": stamp(time.time()),
            **body("", "", ()),
            "done": True,
            "done_reason": reason,
            **durations(began, time.monotonic()),
        }
    )
