"""What is counted and logged when the answers to one request have ended, however they did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gristmill.serve import log
from gristmill.serve.answers import Group

if TYPE_CHECKING:
    from gristmill.serve.run import Job

MAX_LOGGED_IDS = 2000
"""Tokens of a prompt that ``--log-prompts`` looks at."""


def ended(job: Job, group: Group) -> None:
    """Called once, when the engine has nothing more to do for the request."""
    cut = sum(answer.finish is None for answer in group.answers)
    if cut:
        group.metrics.cut_off(cut)
    longest = max((answer.generated for answer in group.answers), default=0)
    group.metrics.request(job.fields.n, job.fields.limit, longest)
    if job.state.options.log_requests:
        log.requests.info(
            "answered %s", job.id, extra={"said": {"id": job.id}, "fields": line(job, group)}
        )


def line(job: Job, group: Group) -> dict[str, object]:
    """The fields of the request's line: numbers and names, and the prompt only if asked for."""
    answers = group.answers
    generated = sum(answer.generated for answer in answers)
    timings = [answer.timings for answer in answers if answer.timings is not None]
    firsts = [answer.first_at for answer in answers if answer.first_at is not None]
    decode = max((each.decode_s for each in timings), default=0.0)
    fields: dict[str, object] = {
        "request": log.request_id.get() or None,
        "model": job.model,
        "stream": job.fields.stream,
        "answers": len(answers),
        "prompt_tokens": sum(len(prompt.ids) for prompt in job.prompts),
        "cached_tokens": max((each.cached_tokens for each in timings), default=0),
        "generated_tokens": generated,
        "finish": ",".join(dict.fromkeys(answer.finish or "abort" for answer in answers)),
        "queue_ms": round(max((each.queue_s for each in timings), default=0.0) * 1000, 1),
        "ttft_ms": round((min(firsts) - group.started) * 1000, 1) if firsts else None,
        "ms": round((time.monotonic() - group.started) * 1000, 1),
        "tokens_per_s": round(generated / decode, 1) if decode > 0 else None,
    }
    if job.state.options.log_prompts:
        ids = job.prompts[0].ids[:MAX_LOGGED_IDS]
        fields["prompt"] = job.served.tokenizer.decode(ids)
    return fields
