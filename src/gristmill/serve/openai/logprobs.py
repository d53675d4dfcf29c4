"""Log-probabilities in OpenAI's two forms and vLLM's for prompts.

A token may be a part of a character. Its ``bytes`` are then exactly its own, and its text is
written as OpenAI writes it: ``bytes:\\xf0\\x9f``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gristmill.serve.protocol import Tokenizer
from gristmill.types import TokenLogprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """The value, or ``LOWEST`` for what JSON has no number for."""
    return logprob if math.isfinite(logprob) and logprob > LOWEST else LOWEST


def token_text(piece: bytes) -> str:
    """A token's bytes as text, or spelt out when they are not whole characters."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_form(entries: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, object]:
    """``{"content": [{token, logprob, bytes, top_logprobs}]}``: one entry a token."""
    content = [
        {
            **_entry(each.token, each.logprob, tokenizer),
            "top_logprobs": [_entry(token, value, tokenizer) for token, value in each.top],
        }
        for each in entries
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, object]:
    piece = tokenizer.piece(token)
    return {
        "token": token_text(piece),
        "logprob": finite(logprob),
        "bytes": list(piece),
        "id": token,
    }


def completion_form(
    entries: Sequence[TokenLogprob | None],
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    offset: int,
) -> dict[str, object]:
    """``{tokens, token_logprobs, top_logprobs, text_offset}``; offsets are in characters.

    ``entries`` is None where nothing comes before a token (a prompt's first); ``tokens`` are
    the ids. ``offset`` is where the first token's text begins in the reply's text.
    """
    names: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    seen = b""
    for token, entry in zip(tokens, entries, strict=True):
        piece = tokenizer.piece(token)
        names.append(token_text(piece))
        offsets.append(offset + len(seen.decode(errors="ignore")))
        seen += piece
        values.append(None if entry is None else finite(entry.logprob))
        tops.append(None if entry is None else _top(entry, tokenizer))
    return {
        "tokens": names,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _top(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    named = {token_text(tokenizer.piece(token)): finite(value) for token, value in entry.top}
    named.setdefault(token_text(tokenizer.piece(entry.token)), finite(entry.logprob))
    return named


def prompt_form(
    entries: Sequence[TokenLogprob | None], tokenizer: Tokenizer
) -> list[dict[str, object] | None]:
    """vLLM's ``prompt_logprobs``: for each token a mapping of ids, None for the first."""
    return [None if entry is None else _ranked(entry, tokenizer) for entry in entries]


def _ranked(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, object]:
    known = {token: rank for rank, (token, _) in enumerate(entry.top, start=1)}
    values = {entry.token: entry.logprob} | dict(entry.top)
    return {
        str(token): {
            "logprob": finite(value),
            "rank": known.get(token),
            "decoded_token": token_text(tokenizer.piece(token)),
        }
        for token, value in values.items()
    }
