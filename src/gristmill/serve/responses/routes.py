"""``/v1/responses``: made, kept, looked at, cancelled, deleted."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import ContextError, RequestError
from gristmill.serve.chat_request import ChatFields, chat_job
from gristmill.serve.dialect import blocks_apart, renamed, translated
from gristmill.serve.errors import JsonResponse, dumps
from gristmill.serve.exchange import KEY, promise
from gristmill.serve.limits import read_object
from gristmill.serve.prompt import chat_tokens
from gristmill.serve.responses.background import Replayed, Run
from gristmill.serve.responses.request import (
    NAMES,
    Asked,
    CountFields,
    ResponsesFields,
    parse_response,
)
from gristmill.serve.responses.shape import EarlyEvents, ResponseEvents, ResponseShape
from gristmill.serve.responses.store import Record, Store, stored
from gristmill.serve.run import Job, reply
from gristmill.serve.state import State
from gristmill.serve.stream import Stream

MAX_PAGE = 100


async def _asked(http: HttpRequest, mark: str) -> Asked:
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    blocks_apart(body, state.options)
    store: Store = http.app.state.responses
    large = "previous_response_id" in body
    return await translated(http, lambda: parse_response(body, store, mark), large)


async def create(http: HttpRequest) -> Response:
    """Makes a response: now, as a stream, or in the background."""
    store: Store = http.app.state.responses
    mark = uuid.uuid4().hex
    asked = await _asked(http, mark)
    if asked.fields.stream:
        promise(http, EarlyEvents())
    with renamed(NAMES):
        job = await _job(http, asked, f"resp_{mark}")
        record = stored(job.id, asked.fields.previous_response_id, asked.items)
        shape = ResponseShape(job, asked, _keeper(store, record, asked.stored))
        if asked.fields.background:
            return _detached(http, store, record, shape)
        framing = ResponseEvents(shape)
        return await reply(http, job, shape.writer, shape.whole, shape.ending, framing)


def _keeper(store: Store, record: Record, kept: bool) -> Callable[[dict[str, object]], None]:
    """What is told of a finished response: it is stored, if it was to be."""

    def keep(body: dict[str, object]) -> None:
        run, record.live = record.live, None
        if not kept or record.deleted:
            return
        record.response = dumps(body)
        if isinstance(run, Run):
            record.events = run.events
        store.put(record)

    return keep


def _detached(http: HttpRequest, store: Store, record: Record, shape: ResponseShape) -> Response:
    run = Run(shape, http.scope[KEY])
    record.live = run
    store.put(record)
    if shape.asked.fields.stream:
        return _followed(run.follow(0, shape.job.state.keep_alive))
    return JsonResponse(run.snapshot())


def _followed(batches: AsyncIterator[list[object] | None]) -> Response:
    return Stream(_Nothing(), batches, Replayed())


class _Nothing:
    """Who follows a response does not end it by leaving."""

    def close(self) -> None:
        """Nothing is held."""


async def _job(http: HttpRequest, asked: Asked, job_id: str) -> Job:
    """The job; with ``truncation`` "auto", of as many of the last turns as there is room for."""
    try:
        job = await chat_job(http, asked.chat, job_id)
        too_long = len(job.prompts[0].ids) >= job.served.context
        if not too_long or asked.fields.truncation != "auto":
            return job
    except ContextError:
        if asked.fields.truncation != "auto":
            raise
    head, cuts = _cuts(asked.chat.messages)
    fits: Job | None = None
    low, high = 0, len(cuts)  # the first cut that fits is looked for; later cuts are shorter
    while low < high:
        middle = (low + high) // 2
        job = await _shorter(http, asked.chat, job_id, head, cuts[middle])
        if job is not None:
            fits, high = job, middle
        else:
            low = middle + 1
    return fits if fits is not None else await chat_job(http, asked.chat, job_id)


def _cuts(messages: Sequence[Mapping[str, object]]) -> tuple[int, Sequence[int]]:
    """How many messages always stay, and where else the rest may begin: at the user's turns."""
    head = int(messages[0]["role"] == "system")
    return head, [i for i in range(head + 1, len(messages)) if messages[i]["role"] == "user"]


async def _shorter(
    http: HttpRequest, fields: ChatFields, job_id: str, head: int, cut: int
) -> Job | None:
    left = [*fields.messages[:head], *fields.messages[cut:]]
    try:
        job = await chat_job(http, fields.model_copy(update={"messages": left}), job_id)
    except ContextError:
        return None
    return job if len(job.prompts[0].ids) < job.served.context else None


async def input_tokens(http: HttpRequest) -> Response:
    """How many tokens the same body would be to the model."""
    asked = await _asked(http, uuid.uuid4().hex)
    with renamed(NAMES):
        counted = await chat_tokens(http, asked.chat)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": counted})


def _record(http: HttpRequest) -> Record:
    store: Store = http.app.state.responses
    return store.get(http.path_params["response_id"])


async def retrieve(http: HttpRequest) -> Response:
    """The response as it is now, or its events from ``starting_after`` on."""
    state: State = http.app.state.gristmill
    record = _record(http)
    if http.query_params.get("stream", "false") != "true":
        return JsonResponse(record.body())
    after = http.query_params.get("starting_after", "-1")
    digits = after.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise RequestError("'starting_after' must be a whole number.", "starting_after")
    first = max(0, int(after) + 1)
    if isinstance(record.live, Run) and record.live.shape.asked.fields.stream:
        return _followed(record.live.follow(first, state.keep_alive))
    if not record.events:
        raise RequestError(
            "Only a response that was made with 'background' and 'stream' can be streamed again.",
            "stream",
        )
    return _followed(_once(record.events[first:]))


async def _once(events: Sequence[bytes]) -> AsyncIterator[list[object] | None]:
    yield list(events)


async def delete(http: HttpRequest) -> Response:
    """Forgets a response, and ends it if it is still being made."""
    record = _record(http)
    record.deleted = True
    if isinstance(record.live, Run):
        await record.live.cancel()
    store: Store = http.app.state.responses
    store.drop(record.id)
    return JsonResponse({"id": record.id, "object": "response", "deleted": True})


async def cancel(http: HttpRequest) -> Response:
    """Ends a response that is made in the background."""
    record = _record(http)
    if isinstance(record.live, Run):
        await record.live.cancel()
    body = record.body()
    if not body["background"]:
        raise RequestError("Only a response made with 'background' can be cancelled.")
    return JsonResponse(body)


async def input_items(http: HttpRequest) -> Response:
    """A page of a response's own input, the last item first unless ``order`` is "asc"."""
    items = _record(http).items()
    query = http.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("'order' can be 'asc' or 'desc'.", "order")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_PAGE):
        raise RequestError(f"'limit' must be a whole number from 1 to {MAX_PAGE}.", "limit")
    if order == "desc":
        items.reverse()
    after = query.get("after")
    if after is not None:
        places = [i for i, item in enumerate(items) if item.get("id") == after]
        if not places:
            raise RequestError(f"'after' names no item ({after[:200]!r}).", "after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return JsonResponse(
        {
            "object": "list",
            "data": page,
            "has_more": len(items) > len(page),
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }
    )


GET = (
    ("/v1/responses/{response_id}", retrieve),
    ("/v1/responses/{response_id}/input_items", input_items),
)
POST = (
    ("/v1/responses", create, ResponsesFields),
    ("/v1/responses/input_tokens", input_tokens, CountFields),
    ("/v1/responses/{response_id}/cancel", cancel, None),
)
DELETE = (("/v1/responses/{response_id}", delete),)
