"""``/api/pull`` and ``/api/delete``: models that come and go; and what is not served."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.errors import GristmillError, OverloadError, RequestError
from gristmill.serve.errors import JsonResponse
from gristmill.serve.fields import Flag
from gristmill.serve.host import Model, aside
from gristmill.serve.library import Library, check_may_change
from gristmill.serve.limits import read_object
from gristmill.serve.ollama.lines import Lines
from gristmill.serve.ollama.models import ModelFields
from gristmill.serve.state import State

MOST_PULLS = 4
EVERY = 0.1
"""Seconds between two lines of progress of one download."""


class PullFields(ModelFields):
    """``/api/pull``."""

    stream: Flag = True
    insecure: Flag = False


class ConflictError(RequestError):
    """It cannot be done now, because of what else is going on."""

    status = 409


@dataclass(frozen=True, slots=True)
class _Seen:
    """A moment of a download."""

    done: int
    total: int | None
    label: str

    def line(self) -> dict[str, object]:
        """Ollama's form: ``digest`` tells one file from another."""
        made: dict[str, object] = {"status": f"pulling {self.label}"}
        if self.total:
            made["digest"] = "sha256:" + hashlib.sha256(self.label.encode()).hexdigest()
            made["total"] = self.total
            if self.done:
                made["completed"] = min(self.done, self.total)
        return made


class _Stopped(Exception):
    """Nobody waits for the download any more: what is there of it is kept."""


class Pull:
    """One download, on a thread of its own, and what is to be told of it."""

    def __init__(self, library: Library, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._seen: list[_Seen] = []
        self._last = 0.0
        self.stopped = False
        self.result = asyncio.ensure_future(aside(lambda: library.fetch(name, self._progress)))
        self.result.add_done_callback(self._over)

    def _progress(self, done: int, total: int | None, label: str) -> None:
        """Called on the thread that fetches."""
        if self.stopped:
            raise _Stopped
        now = time.monotonic()
        fresh = not self._seen or self._seen[-1].label != label
        if fresh or now - self._last >= EVERY or done == total:
            self._last = now
            seen = _Seen(done, total, label)
            self._loop.call_soon_threadsafe(self._note, seen)

    def _note(self, seen: _Seen) -> None:
        self._seen.append(seen)
        self._news.set()

    def _over(self, result: asyncio.Future[Model]) -> None:
        if not result.cancelled():
            result.exception()  # looked at here: there may be nobody left to be told of it
        self._news.set()

    async def lines(self) -> AsyncIterator[dict[str, object]]:
        """What there is to tell, until the model is there. Raises what the download raised."""
        yield {"status": "pulling manifest"}
        told = 0
        while not self.result.done() or told < len(self._seen):
            if told == len(self._seen):
                self._news.clear()
                await self._news.wait()
            while told < len(self._seen):
                yield self._seen[told].line()
                told += 1
        await self.result


async def pull(http: HttpRequest) -> Response:
    """Fetches a model into the store; from then on it can be asked for."""
    state: State = http.app.state.gristmill
    state.open()
    check_may_change(http, state.options)
    fields = PullFields.parse(await read_object(http, state.options.max_body_bytes))
    library = _library(state)
    if not fields.wanted:
        raise RequestError("'model' is missing.", "model")
    if len(state.pulls) >= MOST_PULLS:
        raise OverloadError(f"{MOST_PULLS} models are being fetched; try again later.", 10)
    running = Pull(library, _reference(state, fields.wanted))
    state.pulls.add(running)
    running.result.add_done_callback(lambda _: state.pulls.discard(running))
    answer = PullAnswer(state, running, fields.stream)
    return answer if fields.stream else await answer.whole(http)


def _reference(state: State, name: str) -> str:
    """A model that is known already is fetched under the name it was fetched before."""
    entry = state.host.find(name)
    return entry.model.reference if entry is not None and entry.model.reference else name


class PullAnswer(Response):
    """The lines of a download as they come, or only the last one."""

    def __init__(self, state: State, running: Pull, stream: bool) -> None:
        self.framing = Lines()
        self.media_type = self.framing.media_type
        self.status_code = 200
        self.background = None
        self.state, self.running, self.stream = state, running, stream
        self.init_headers({"Cache-Control": "no-cache"})

    async def whole(self, http: HttpRequest) -> Response:
        """Waits for the end of it."""
        watcher = asyncio.ensure_future(_left(http.receive))
        try:
            await asyncio.wait({self.running.result, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not self.running.result.done():
                return Response(status_code=499)
            await self._there(self.running.result.result())
        finally:
            watcher.cancel()
            self.running.stopped = True
        return JsonResponse({"status": "success"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream; a client that leaves stops the download."""
        watcher = asyncio.ensure_future(_left(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait({sending, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.running.stopped = True
            watcher.cancel()
            if not sending.done():
                sending.cancel()
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def part(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            async for line in self.running.lines():
                await part(self.framing.chunk(line))
            await self._there(self.running.result.result())
            await part(self.framing.chunk({"status": "success"}))
        except GristmillError as error:
            await part(self.framing.failure(error))
        await part(b"", more=False)

    async def _there(self, model: Model) -> None:
        """The model has come: it can be asked for."""
        host = self.state.host
        if all(entry.model.path != model.path for entry in host.entries):
            host.add(model)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def delete(http: HttpRequest) -> Response:
    """Deletes a model from the store."""
    state: State = http.app.state.gristmill
    state.open()
    check_may_change(http, state.options)
    fields = ModelFields.parse(await read_object(http, state.options.max_body_bytes))
    library = _library(state)
    if not fields.wanted:
        raise RequestError("'model' is missing.", "model")
    entry = await state.host.look_up(fields.wanted)
    if not entry.model.stored:
        raise RequestError(
            f"The model '{entry.names[0]}' was named when the server was started; it is not "
            "deleted for a request.",
            "model",
        )
    if not await state.host.unload(entry):
        raise ConflictError(f"The model '{entry.names[0]}' is in use.", "model")
    state.host.forget(entry)
    await aside(lambda: library.delete(entry.model))
    return Response(status_code=200)


def _library(state: State) -> Library:
    if state.library is None:
        raise RequestError("This server has no model store.")
    return state.library


async def making(http: HttpRequest) -> Response:
    """``/api/create``, ``/api/copy``, ``/api/push``, ``/api/blobs``."""
    del http
    raise RequestError(
        "Models are not made, copied or pushed here. A model can have several names when the "
        "server is started: --model NAME=MODEL."
    )
