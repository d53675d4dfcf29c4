"""How many tokens a step may have, so that it does not take too long on this machine.

A big model on few cores needs many seconds for a full chunk of a prompt; everybody else's next
token, an abort and a new request would wait as long. Beyond a few dozen rows a larger chunk is
no more efficient, so chunks shrink until a step keeps its time. Chunks never change the text.
"""

from __future__ import annotations

LEAST = 32
"""A chunk this small still has most of the efficiency of a large one."""

ANSWERING_SECONDS = 0.25
"""What a step should take while somebody waits for the next token of an answer."""

ALONE_SECONDS = 1.0
"""What it may take otherwise."""


class Pace:
    """Learns the time per prompt token from the steps that had enough of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seconds_per_token = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of ``tokens`` tokens took ``seconds``. Small steps say nothing about chunks."""
        if tokens < LEAST:
            return
        rate = seconds / tokens
        known = self._seconds_per_token
        self._seconds_per_token = rate if known == 0.0 else known + 0.25 * (rate - known)

    def budget(self, answering: int) -> int:
        """Tokens of the next step, when ``answering`` sequences want one token each."""
        if self._seconds_per_token == 0.0:
            return self._most
        seconds = ANSWERING_SECONDS if answering else ALONE_SECONDS
        fitting = int(seconds / self._seconds_per_token)
        return min(self._most, max(fitting, LEAST + answering))
