"""Walks along with one answer and says which tokens may come next.

``prepare`` (the slow part, on a thread of its own while the step runs) makes the mask of the next
token, ``accept`` takes the token that was chosen. The order is always: prepare, accept, prepare,
…; a guide has no locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from gristmill.engine.grammar.reasons import reason
from gristmill.engine.grammar.thought import Thought

U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Facts:
    """What all guides of a model share. ``words`` of 32 bits make a mask."""

    words: int
    eos: tuple[int, ...]


class Guide:
    """One answer under a constraint, a thinking budget, or both.

    ``mask`` is a bitmask over the model's vocabulary, or None when anything may come. ``error``
    says why the answer cannot go on; nothing may be asked of the guide afterwards.
    """

    def __init__(
        self,
        facts: Facts,
        matcher: LLMatcher | None,
        tokenizer: LLTokenizer | None,
        thought: Thought | None,
    ) -> None:
        self._facts = facts
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._thought = thought
        self._buffer: U32 | None = None
        self.mask: U32 | None = None
        self.error: str | None = None

    @property
    def slow(self) -> bool:
        """Whether ``prepare`` has a grammar to ask, so that another thread is worth it."""
        thought = self._thought
        if self._matcher is None or self.error is not None:
            return False
        return thought is None or not (thought.forced or thought.state == "inside")

    @property
    def bans(self) -> Sequence[int]:
        """Tokens that must not come now. A thought before a constrained answer cannot end all."""
        thought = self._thought
        if thought is None:
            return ()
        if self._matcher is not None and thought.state == "inside":
            return self._facts.eos
        return thought.bans

    def prepare(self) -> None:
        """Make ``mask`` for the next token, or set ``error``."""
        thought = self._thought
        if thought is not None and thought.forced:
            self._only(thought.forced[0])
        elif not self.slow:
            self.mask = None
        else:
            self._ask(None if thought is None else thought.door)

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first, could be chosen one after the other; at least so
        many as are worth trying: who chooses asks for a mask before each of them all the same."""
        thought, matcher = self._thought, self._matcher
        if self.error is not None:
            return 0
        if thought is not None and thought.state != "past":
            return 0 if thought.forced or thought.state == "before" else len(tokens)
        return len(tokens) if matcher is None else matcher.validate_tokens(list(tokens))

    def accept(self, token: int) -> bool:
        """Take the chosen token. Whether the answer is complete: nothing could follow it."""
        thought = self._thought
        if thought is not None and thought.state != "past":
            if thought.state == "before" and self._matcher is not None and not thought.forced:
                if token != thought.door:
                    thought.end()
                    return self._consume((token,))
                thought.open()
                thought.forced.appendleft(token)
            rest = thought.accept(token)
            if rest.strip() and self._tokenizer is not None:  # the thought is over
                return self._consume(self._tokenizer.tokenize_bytes(rest))
            return False
        return self._consume((token,))

    def _consume(self, tokens: Sequence[int]) -> bool:
        matcher = self._matcher
        if matcher is None:
            return False
        if not matcher.consume_tokens(list(tokens)):
            self.error = _stuck(matcher)
            return False
        return matcher.is_stopped()

    def _ask(self, door: int | None) -> None:
        matcher, mask = self._matcher, self._room()
        assert matcher is not None
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            self.error = _stuck(matcher)
            return
        if door is not None:
            mask[door // 32] |= np.uint32(1 << door % 32)
        if not mask.any():
            self.error = "The answer has come to a point where its constraint allows no token."
            return
        self.mask = mask

    def _only(self, token: int) -> None:
        self.mask = self._room()
        self.mask[:] = 0
        self.mask[token // 32] = np.uint32(1 << token % 32)

    def _room(self) -> U32:
        if self._buffer is None:
            self._buffer = np.zeros(self._facts.words, np.uint32)
        return self._buffer


def _stuck(matcher: LLMatcher) -> str:
    return f"The constraint became too complex to follow: {reason(matcher.get_error())}"
