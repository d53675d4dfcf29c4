"""From checked fields to a running answer: what the generating routes of all dialects do alike."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import gristmill
from gristmill.errors import RequestError
from gristmill.serve import log
from gristmill.serve.answers import Answer, Group, Write, chunks
from gristmill.serve.bridge import Ticket
from gristmill.serve.ending import ended
from gristmill.serve.errors import DeadlineError, JsonResponse
from gristmill.serve.protocol import Prompt, Served
from gristmill.serve.requests import Generation, sampling
from gristmill.serve.state import State
from gristmill.serve.stream import Framing, Stream
from gristmill.types import Delta, Pooling, Request, SamplingParams

FINGERPRINT = f"gristmill-{gristmill.__version__}"


@dataclass(frozen=True)
class Job:
    """One HTTP request that generates: everything known before the engine is asked."""

    state: State
    served: Served
    fields: Generation
    model: str
    """The name to answer with: the one the client used."""
    id: str
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    created: int
    pooling: Pooling | None = None
    """For embeddings: nothing is generated."""
    ping: float | None = None
    """Seconds of silence after which a stream has a sign of life; None: the server's."""

    @property
    def keep_alive(self) -> float:
        """The same, resolved."""
        return self.state.keep_alive if self.ping is None else self.ping

    def envelope(self, kind: str) -> dict[str, object]:
        """What every body and chunk begins with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


def new_id(prefix: str, fields: Generation | None = None) -> str:
    """The reply's id: our prefix and the client's own ``request_id``, else the id of the HTTP
    request (``X-Request-Id``, or a random one)."""
    own = fields.request_id if fields is not None else None
    return f"{prefix}-{own or log.request_id.get() or uuid.uuid4().hex}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


async def sampling_of(
    state: State, fields: Generation, served: Served, logprobs: int | None
) -> SamplingParams:
    """``requests.sampling``, off the event loop where that takes its time."""
    if not (fields.slow or served.defaults.get("dry_multiplier")):
        return sampling(fields, served, logprobs)
    return await state.in_worker(partial(sampling, fields, served), logprobs)


def start(job: Job) -> tuple[Ticket, Group]:
    """Hands the prompts to the engine. Raises what the engine raises, with nothing left queued."""
    job.state.open()  # a drain may have begun while the prompt was tokenised
    fields, slots = job.fields, job.served.slots
    if slots is not None and fields.id_slot >= slots.count:
        raise RequestError(
            f"'id_slot' is {fields.id_slot}; slots go from 0 to {slots.count - 1}.", "id_slot"
        )
    requests: list[Request] = []
    answers: list[Answer] = []
    bases: dict[str, int] = {}
    for prompt in job.prompts:
        # The engine's id is ours alone: two clients may choose the same request_id.
        request_id = f"{job.id[:80]}-{uuid.uuid4().hex[:12]}"
        bases[request_id] = len(answers)
        for _ in range(fields.n):
            parser = prompt.parser() if prompt.parser is not None else None
            answers.append(Answer(len(answers), len(prompt.ids), parser))
        requests.append(
            Request(
                id=request_id,
                prompt=prompt.ids,
                sampling=job.sampling,
                n=fields.n,
                beams=fields.n if fields.use_beam_search else 0,
                length_penalty=fields.length_penalty,
                client=_client(fields.user),
                priority=fields.priority,
                cache_salt=fields.cache_salt,
                cache=fields.cache_prompt,
                keep=fields.n_keep,
                discard=fields.n_discard,
                slot=fields.id_slot,
                progress=fields.return_progress and fields.stream,
                patience=fields.patience,
                indent=fields.n_indent,
                pooling=job.pooling,
            )
        )
    most = job.served.most_answers
    if most is not None and len(answers) > most:
        raise RequestError(
            f"This request asks for {len(answers)} answers at once; the server takes "
            f"{most} at most, running and waiting (--max-num-seqs, --max-waiting)."
        )
    ticket = job.state.bridge.open(job.served.engine)
    ticket.submit(requests)
    limits = [each for each in (job.state.options.request_timeout, fields.timeout) if each]
    if limits:
        ticket.expire(min(limits), DeadlineError(min(limits)))
    group = Group(answers, bases, job.state.metrics.of(job.served))
    ticket.at_end = partial(ended, job, group)
    return ticket, group


def _client(user: str) -> str:
    """Who asks, and for which of its users."""
    return f"{log.client.get()}\n{user[:512]}" if user else log.client.get()


async def reply(
    http: HttpRequest,
    job: Job,
    write: Callable[[Group], Write],
    whole: Callable[[Group], object],
    ending: Callable[[Group], list[object]],
    framing: Framing | None = None,
) -> Response:
    """The whole answer as one body, or the stream of its chunks.

    A stream's status line waits for the first token (or the first keep-alive), so that an
    error that comes before it still has its own status.
    """
    ticket, group = start(job)
    ticket.watch(http.receive)
    try:
        if not job.fields.stream:
            await group.whole(ticket)
            ticket.close()
            return JsonResponse(whole(group))
        first = await ticket.batch(job.keep_alive)
        _raise_early(group, first)
    except BaseException:
        ticket.close()
        raise

    batches = chunks(group, ticket, first, write(group), job.keep_alive, ending)
    return Stream(ticket, batches, framing)


def _raise_early(group: Group, first: Sequence[Delta]) -> None:
    """Raises the error that ended the answer before it began, while it can have a status."""
    for delta in first:
        if delta.finish in ("error", "abort"):
            group.feed(delta)
