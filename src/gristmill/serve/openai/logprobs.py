"""Log-probabilities in OpenAI's two forms and vLLM's for prompts.

A token may be a part of a character. Its ``bytes`` are then exactly its own, and its text is
written as OpenAI writes it: ``bytes:\\xf0\\x9f``.
"""

from __future__ import annotations

import codecs
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


class Cursor:
    """Where in a reply's text, in characters, each next token begins."""

    def __init__(self) -> None:
        self._at = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self, piece: bytes) -> int:
        """The place of a token with these bytes; a part of a character begins where it does."""
        here = self._at
        self._at += len(self._decoder.decode(piece))
        return here

    def skip(self, text: str) -> None:
        """Text whose tokens are not told (an echoed prompt) stands before the next token."""
        self._at += len(text)


def completion_form(
    entries: Sequence[TokenLogprob | None],
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    cursor: Cursor,
) -> dict[str, object]:
    """``{tokens, token_logprobs, top_logprobs, text_offset}``; offsets are in characters.

    ``entries`` is None where nothing comes before a token (a prompt's first); ``tokens`` are
    the ids. ``cursor`` goes on from one part of a stream to the next.
    """
    pieces = [tokenizer.piece(token) for token in tokens]
    return {
        "tokens": [token_text(piece) for piece in pieces],
        "token_logprobs": [None if each is None else finite(each.logprob) for each in entries],
        "top_logprobs": [None if each is None else _top(each, tokenizer) for each in entries],
        "text_offset": [
            cursor.step(b"" if tokenizer.hidden(token) else piece)
            for token, piece in zip(tokens, pieces, strict=True)
        ],
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
