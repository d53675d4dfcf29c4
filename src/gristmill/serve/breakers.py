"""Texts that become runs of tokens: DRY's sequence breakers and vLLM's bad words."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from gristmill.serve.protocol import Tokenizer

MAX_BYTES = 40
"""A breaker is cut after so many bytes, as llama.cpp cuts it."""
MAX_TAIL = 20
"""Tokens after a run's first."""
_MOST_KEPT = 64

Runs = tuple[tuple[int, ...], ...]


class _Known:
    """The spellings of a vocabulary, and what breakers came to with it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        self.runs: dict[str, Runs] = {}


_known: WeakKeyDictionary[Tokenizer, _Known] = WeakKeyDictionary()
_lock = threading.Lock()


def breaker_runs(tokenizer: Tokenizer, texts: Sequence[str]) -> Runs:
    """All runs of tokens in whose text one of ``texts`` may stand (llama.cpp's rule).

    A token that holds a breaker is a run of its own. A token that ends with the beginning of one
    is the first of a run, the tokens of the breaker's rest are the others. Slow (the vocabulary
    is read through, 10 ms and more) for a text that was not asked for before.
    """
    with _lock:
        known = _known.get(tokenizer)
        if known is None:
            known = _known[tokenizer] = _Known(tokenizer)
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        runs = known.runs.get(text)
        if runs is None:
            runs = _runs(tokenizer, known.pieces, text)
            if len(known.runs) >= _MOST_KEPT:
                known.runs.clear()
            known.runs[text] = runs
        found.update(dict.fromkeys(runs))
    return tuple(found)


def _runs(tokenizer: Tokenizer, pieces: Sequence[bytes], text: str) -> Runs:
    breaker = text.encode()[:MAX_BYTES]
    whole = {token for token, piece in enumerate(pieces) if breaker in piece}
    found: set[tuple[int, ...]] = {(token,) for token in whole}
    for cut in range(1, len(breaker)):
        rest = breaker[cut:].decode("utf-8", "replace")
        tail = tokenizer.encode(rest, add_special=False, parse_special=False)[:MAX_TAIL]
        start = breaker[:cut]
        found.update(
            (token, *tail)
            for token, piece in enumerate(pieces)
            if piece.endswith(start) and token not in whole
        )
    return tuple(sorted(found))


def bad_runs(tokenizer: Tokenizer, words: Sequence[str]) -> Runs:
    """Words as tokens, without and with a blank before them, by vLLM's rule: the spelling with
    a blank counts only if it is as long as the other and begins with another token."""
    found: list[tuple[int, ...]] = []
    for word in words:
        plain = word.lstrip() or word
        bare = tokenizer.encode(plain, add_special=False, parse_special=True)
        if bare:
            found.append(tuple(bare))
        spaced = tokenizer.encode(" " + plain, add_special=False, parse_special=True)
        if bare and len(spaced) == len(bare) and spaced[0] != bare[0]:
            found.append(tuple(spaced))
    return tuple(dict.fromkeys(found))
