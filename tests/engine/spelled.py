"""A vocabulary of single bytes and a few marks, for constraints without a model."""

from __future__ import annotations

import random

import numpy as np

from gristmill.engine.grammar import Guide


class Bytes:
    """Ids 0 to 255 are bytes; then the end of sequence, a control token, and marks."""

    EOS = 256
    MARKS = ("<eos>", "<ctl>", "<think>", "</think>", '{"', '": ')
    vocab_size = 256 + len(MARKS)

    def piece(self, token: int) -> bytes:
        """What a token stands for."""
        if token < 256:
            return bytes([token])
        return self.MARKS[token - 256].encode() if token < self.vocab_size else b""

    def hidden(self, token: int) -> bool:
        """The first two marks are no text."""
        return token in (256, 257)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Bytes, and marks where they count."""
        del add_special
        ids: list[int] = []
        while text:
            marks = self.MARKS if parse_special else ()
            found = next((m for m in marks[:4] if text.startswith(m)), None)
            if found:
                ids.append(256 + self.MARKS.index(found))
                text = text[len(found) :]
            else:
                ids += list(text[0].encode())
                text = text[1:]
        return ids

    def text(self, ids: list[int]) -> str:
        """The text that is read."""
        return b"".join(self.piece(i) for i in ids if not self.hidden(i)).decode("utf-8", "replace")


CLOSING = frozenset(b'"}],:')
BLANK = frozenset(b" \t\r\n")


def allowed(guide: Guide, vocab: int) -> list[int]:
    """The ids that may come next."""
    guide.prepare()
    assert guide.error is None, guide.error
    if guide.mask is None:
        ids = list(range(vocab))
    else:
        bits = np.unpackbits(guide.mask.view(np.uint8), bitorder="little")
        ids = [int(i) for i in np.flatnonzero(bits)]
        assert max(ids) < vocab
    return [i for i in ids if i not in guide.bans] or ids


def walk(
    guide: Guide, rng: random.Random, most: int = 200, avoid: frozenset[int] = BLANK
) -> list[int] | None:
    """Random tokens that the masks allow, up to the end; None if it does not come in time."""
    out: list[int] = []
    for step in range(3 * most):
        ids = allowed(guide, Bytes.vocab_size)
        if Bytes.EOS in ids and (len(ids) == 1 or rng.random() < 0.3):
            return out
        closing = [i for i in ids if i in CLOSING] if step > most else []
        plain = [i for i in ids if i != Bytes.EOS and i not in avoid and i != ord("\\") and i < 127]
        out.append(rng.choice(closing or plain or [i for i in ids if i != Bytes.EOS]))
        if guide.accept(out[-1]):
            return out
    return None
