"""Ids to text as they come: whole characters only.

Runs on the engine's thread, a microsecond or two a token, and never raises.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from gristmill.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The incremental form of ``Tokenizer.decode``.

    However the ids are cut into pushes, the texts joined are ``decode`` of all of them: the
    bytes of an unfinished character are held back, bytes that are no UTF-8 become U+FFFD.
    An answer is a continuation of its prompt, so its first space is its own and stays;
    ``continuation=False`` is for text that stands alone. ``shown`` are special tokens that are
    not skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        shown: Sequence[int] = (),
        *,
        continuation: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special
        self._shown = frozenset(shown)
        self._decoder = _new_decoder("replace")
        self._started = continuation

    def push(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` complete; "" if they end inside their first character."""
        if self._skip:
            hidden = self._tokenizer.hidden
            ids = [i for i in ids if not hidden(i) or i in self._shown]
        piece = self._tokenizer.piece
        data = piece(ids[0]) if len(ids) == 1 else b"".join(map(piece, ids))
        if not self._started and ids:
            self._started = True
            if self._tokenizer.strips_start(ids[0]):
                data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """At the end: U+FFFD for a character that was never finished, else ""."""
        return self._decoder.decode(b"", True)
