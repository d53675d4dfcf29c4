"""How many tokens a step may have, so that nobody waits too long for the next one.

While somebody waits for the next token of an answer, prompts may make a step at most ``slowdown``
times as long as it would be without them. What a step takes without prompts is measured whenever
there is one; if prompts never leave a gap, every ``PROBE``-th step is made without them. What a
prompt's token adds is measured by the steps that have some. Both change with the machine's load,
the number of answers and the length of the contexts, so both are running means.

Beyond a few dozen rows a larger chunk is no more efficient, so where nobody waits chunks are
bounded in seconds: an abort and a new request wait as long. Chunks never change the text.
"""

from __future__ import annotations

LEAST = 32
"""A chunk this small still has most of the efficiency of a large one."""

LEAST_BESIDE = 8
"""The smallest chunk beside answers: a prompt always goes on."""

ANSWERING_SECONDS = 0.25
"""What a step should take at most while somebody waits for the next token of an answer."""

ALONE_SECONDS = 1.0
"""What it may take otherwise."""

PROBE = 32

_WEIGHT = 0.25
"""Of a new measurement in a running mean."""


class Pace:
    """Learns what steps cost. ``most`` tokens in any step; ``slowdown`` at least 1."""

    def __init__(self, most: int, slowdown: float = 2.0) -> None:
        self._most = most
        self._slowdown = slowdown
        self._seconds_per_token = 0.0
        self._added_per_token = 0.0
        self._plain: dict[int, float] = {}
        self._mixed = 0

    def observe(self, answers: int, tokens: int, seconds: float) -> None:
        """A step of ``tokens`` tokens, ``answers`` of them an answer's next, took ``seconds``."""
        prompt = tokens - answers
        if tokens >= LEAST and prompt > answers:
            # Small steps say nothing about chunks.
            self._seconds_per_token = _mean(self._seconds_per_token, seconds / tokens)
        if not answers:
            return
        size = answers.bit_length()
        if prompt <= 0:
            known = self._plain.get(size, 0.0)
            self._plain[size] = _mean(known, seconds, 0.5 if self._mixed >= PROBE else _WEIGHT)
            self._mixed = 0
        elif size in self._plain:
            self._mixed += 1
            added = max(0.02 * seconds / tokens, (seconds - self._plain[size]) / prompt)
            self._added_per_token = _mean(self._added_per_token, added)

    def budget(self, answers: int) -> int:
        """Tokens of the next step, when ``answers`` sequences want one token each."""
        if not answers:
            if not self._seconds_per_token:
                return self._most
            return min(self._most, max(LEAST, int(ALONE_SECONDS / self._seconds_per_token)))
        plain = self._plain.get(answers.bit_length())
        if plain is None or self._mixed >= PROBE:
            return min(self._most, answers)
        chunk = float(LEAST)
        if self._added_per_token:
            seconds = min((self._slowdown - 1) * plain, ANSWERING_SECONDS - plain)
            chunk = min(self._most, seconds / self._added_per_token)
        return min(self._most, answers + max(LEAST_BESIDE, int(chunk)))


def _mean(known: float, new: float, weight: float = _WEIGHT) -> float:
    return new if known == 0.0 else known + weight * (new - known)
