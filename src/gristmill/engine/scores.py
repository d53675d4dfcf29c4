"""Log-probabilities of prompts' tokens, kept by block: asked for again they need no computing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.engine.sequence import Sequence
from gristmill.kv.blocks import BlockManager
from gristmill.types import TokenLogprob

MOST = 2048
"""Blocks whose scores are kept; the least recently used go."""


class ScoreCache:
    """Of one engine. A block's scores hold whenever its digest does."""

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._kept: OrderedDict[bytes, tuple[int, tuple[TokenLogprob | None, ...]]] = OrderedDict()

    def recall(self, sequence: Sequence) -> int:
        """Give a sequence that is to be scored what is known; how many of its tokens may come from
        the prefix cache: the last one scored has to be computed, for the next one's sake."""
        wanted = sequence.scored
        if wanted is None or not sequence.table.shared:
            return 0
        known: list[TokenLogprob | None] = []
        count = sequence.prompt_tokens // BLOCK_TOKENS
        for digest, _ in self._manager.keys(sequence.table, sequence.tokens, count):
            top, scores = self._kept.get(digest, (-1, ()))
            if top < wanted:
                break
            self._kept.move_to_end(digest)
            known.extend(None if s is None else replace(s, top=s.top[:wanted]) for s in scores)
        del known[sequence.prompt_tokens - 1 :]
        if len(known) > len(sequence.prompt_logprobs):
            sequence.prompt_logprobs[:] = known
        return len(sequence.prompt_logprobs) - 1

    def keep(self, sequence: Sequence) -> None:
        """A sequence's prompt is scored to its end."""
        wanted, scores = sequence.request.sampling.prompt_logprobs, sequence.prompt_logprobs
        if wanted is None or not sequence.table.shared:
            return
        count = min(len(scores), sequence.prompt_tokens) // BLOCK_TOKENS
        keys = self._manager.keys(sequence.table, sequence.tokens, count)
        for entry, (digest, _) in enumerate(keys):
            if self._kept.get(digest, (-1, ()))[0] < wanted:
                first = entry * BLOCK_TOKENS
                self._kept[digest] = (wanted, tuple(scores[first : first + BLOCK_TOKENS]))
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
