"""``completion_probabilities``: the likeliest tokens at each place of an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gristmill.serve.protocol import Tokenizer
from gristmill.types import TokenLogprob

LOWEST = -3.4028234663852886e38
"""float32's lowest number, for minus infinity."""


def probabilities(
    entries: Sequence[TokenLogprob], tokenizer: Tokenizer, after: bool
) -> list[dict[str, object]]:
    """One entry a token. ``after``: the values are of what was drawn from, as probabilities."""
    tops = "top_probs" if after else "top_logprobs"
    return [
        {
            **_entry(each.token, each.logprob, tokenizer, after),
            tops: [
                _entry(token, value, tokenizer, after)
                for token, value in each.top
                if not (after and value == -math.inf)
            ],
        }
        for each in entries
    ]


def _entry(token: int, logprob: float, tokenizer: Tokenizer, after: bool) -> dict[str, object]:
    piece = tokenizer.piece(token)
    value = {"prob": math.exp(logprob)} if after else {"logprob": max(logprob, LOWEST)}
    return {"id": token, "token": _whole(piece), "bytes": list(piece), **value}


def _whole(piece: bytes) -> str:
    """A token's text up to its last whole character, as llama-server writes it."""
    return piece.decode("utf-8", "ignore")
