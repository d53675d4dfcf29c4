"""``usage`` (OpenAI) and ``timings`` (llama-server): what an answer cost."""

from __future__ import annotations

import time

from gristmill.serve.answers import Answer, Group
from gristmill.types import Timings


def usage(group: Group) -> dict[str, object]:
    """Tokens in and out of all answers so far. A prompt continued ``n`` times counts once."""
    heads = [group.answers[base] for base in group.bases.values()]
    prompt = sum(answer.prompt_tokens for answer in heads)
    cached = sum(answer.timings.cached_tokens for answer in heads if answer.timings)
    generated = sum(answer.generated for answer in group.answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(answer: Answer) -> dict[str, object] | None:
    """llama-server's ``timings`` of a finished answer, None when the engine told none."""
    return None if answer.timings is None else _shape(answer.timings)


def running_timings(answer: Answer, group: Group) -> dict[str, object]:
    """The same, measured at the server, for an answer still being written."""
    if answer.timings is not None:
        return _shape(answer.timings)
    now = time.monotonic()
    first = answer.first_at if answer.first_at is not None else now
    return _shape(
        Timings(
            prefill_s=first - group.started,
            decode_s=now - first,
            prompt_tokens=answer.prompt_tokens,
            generated_tokens=len(answer.tokens),
        )
    )


def _shape(took: Timings) -> dict[str, object]:
    computed = took.prompt_tokens - took.cached_tokens
    shaped: dict[str, object] = {
        "cache_n": took.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": round(took.prefill_s * 1e3, 3),
        "prompt_per_token_ms": _ratio(took.prefill_s * 1e3, computed),
        "prompt_per_second": _ratio(computed, took.prefill_s),
        "predicted_n": took.generated_tokens,
        "predicted_ms": round(took.decode_s * 1e3, 3),
        "predicted_per_token_ms": _ratio(took.decode_s * 1e3, took.generated_tokens),
        "predicted_per_second": _ratio(took.generated_tokens, took.decode_s),
    }
    if took.draft_tokens:
        shaped["draft_n"] = took.draft_tokens
        shaped["draft_n_accepted"] = took.draft_accepted
    return shaped


def _ratio(above: float, below: float) -> float:
    return round(above / below, 3) if below > 0 else 0.0
