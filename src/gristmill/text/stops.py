"""Finding stop strings in a stream of text pieces.

The earliest match wins, and earliest means: complete first, because that is the moment at which
generation ends, however the text was cut into pieces. Of several that complete with the same
character, the longest (the one that began first) wins.
"""

from __future__ import annotations


class StopMatcher:
    """Passes text on, except what may yet turn out to be a stop string.

    One automaton of Knuth, Morris and Pratt per stop string: time is linear in the text,
    whatever the strings. Empty stop strings match nothing.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        """``include``: a matched stop string is part of the text."""
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self._ended_by: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to pass on, the stop string that has ended the answer or None).

        After a match nothing more is passed on.
        """
        if self._ended_by is not None:
            return "", self._ended_by
        if not self._held and self._firsts.isdisjoint(text):
            return text, None
        text = self._held + text
        for at in range(len(self._held), len(text)):
            stop = self._step(text[at])
            if stop is not None:
                end = at + 1 if self._include else at + 1 - len(stop)
                self._held, self._ended_by = "", stop
                return text[:end], stop
        cut = len(text) - max(self._matched)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """At the end without a match: the text held back."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _step(self, char: str) -> str | None:
        """Advance every automaton by a character; the longest stop string that is complete."""
        best: str | None = None
        for i, stop in enumerate(self._stops):
            n = self._matched[i]
            while n and stop[n] != char:
                n = self._fallbacks[i][n - 1]
            if stop[n] == char:
                n += 1
            if n == len(stop):
                if best is None or n > len(best):
                    best = stop
                n = self._fallbacks[i][n - 1]
            self._matched[i] = n
        return best


def _fallbacks(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    out = [0] * len(stop)
    n = 0
    for i in range(1, len(stop)):
        while n and stop[i] != stop[n]:
            n = out[n - 1]
        if stop[i] == stop[n]:
            n += 1
        out[i] = n
    return out
