"""Ends of an answer that depend on its lines: an indentation left, a time used up.

Made for code that is completed while somebody types: see ``Request.indent`` and ``patience``.
"""

from __future__ import annotations

from time import monotonic


class Lines:
    """Watches the text of one answer as it is let out.

    A line that begins with fewer than ``indent`` blanks (spaces and tabs) ends the answer before
    its first other character. The first line is free: it goes on where the prompt ends. After
    ``patience`` seconds the answer ends with the next line break.
    """

    def __init__(self, indent: int, patience: float | None) -> None:
        self._indent = indent
        self._patience = patience
        self._began = monotonic()
        self._blanks: int | None = None
        """Blanks of the present line so far; None beyond its beginning."""

    def push(self, text: str) -> tuple[str, bool]:
        """What of ``text`` may be let out, and whether the answer ends with it."""
        if self._indent:
            for at, character in enumerate(text):
                if self._blanks is not None and character in " \t":
                    self._blanks += 1
                elif self._blanks is not None and self._blanks < self._indent:
                    return text[:at], True
                else:
                    self._blanks = 0 if character == "\n" else None
        late = self._patience is not None and monotonic() - self._began > self._patience
        return text, late and "\n" in text
