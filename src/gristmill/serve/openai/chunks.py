"""The chunks of OpenAI's streams: what chats and completions have alike."""

from __future__ import annotations

from gristmill.serve.answers import Answer, Group, Part
from gristmill.serve.errors import Encoded, dumps
from gristmill.serve.openai.usage import running_timings, timings, usage
from gristmill.serve.run import Job
from gristmill.types import Progress


def chunk(
    job: Job,
    group: Group,
    answer: Answer,
    kind: str,
    body: dict[str, object],
    part: Part | None,
    closing: bool,
    finish: str | None = None,
) -> dict[str, object]:
    """One chunk of an answer: ``body`` is what the dialect says of it, text and logprobs;
    ``finish`` is another word for why it ended."""
    choice: dict[str, object] = {
        "index": answer.index,
        **body,
        "finish_reason": (finish or answer.finish) if closing else None,
    }
    if closing:
        choice["stop_reason"] = answer.stopped_by
    if part is not None and job.fields.return_token_ids:
        choice["token_ids"] = list(part.tokens)
    more = _extras(job, group, answer, closing)
    if part is not None and part.progress is not None:
        more["prompt_progress"] = progress_form(part.progress)
    return {**job.envelope(kind), "choices": [choice], **more}


class Mould:
    """A chunk of which only one text changes: encoded once, then filled in.

    ``sample`` is the chunk with ``HOLE`` as that text. A stream has thousands of them.
    """

    HOLE = "\ue000\ue001"

    def __init__(self, sample: object) -> None:
        head, hole, tail = dumps(sample).partition(dumps(self.HOLE))
        if not hole or dumps(self.HOLE) in tail:
            raise ValueError("a sample has one hole")
        self._head, self._tail = head, tail

    def fill(self, text: str) -> Encoded:
        """The chunk with ``text`` in it."""
        return Encoded(self._head + dumps(text) + self._tail)


def progress_form(progress: Progress) -> dict[str, object]:
    """llama-server's ``prompt_progress``."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": round(progress.seconds * 1e3),
    }


def _extras(job: Job, group: Group, answer: Answer, closing: bool) -> dict[str, object]:
    more: dict[str, object] = {}
    if answer.finish is not None:
        took = timings(answer) if closing else None
        if took is not None:
            more["timings"] = took
    elif job.fields.timings_per_token:
        more["timings"] = running_timings(answer, group)
    if job.fields.continuous_usage:
        more["usage"] = usage(group)
    elif job.fields.include_usage:
        more["usage"] = None
    return more


def usage_chunk(job: Job, group: Group, kind: str) -> list[object]:
    """The last chunk of a stream whose client asked for usage."""
    if not job.fields.include_usage:
        return []
    return [{**job.envelope(kind), "choices": [], "usage": usage(group)}]
