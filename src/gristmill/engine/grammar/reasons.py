"""llguidance's error texts, cut down to one sentence."""

from __future__ import annotations

import re

MOST = 300
"""Characters of a reason: it may quote what a client sent."""

_PLACE = re.compile(r"^(?:at )?(?:(?P<line>\d+)\((?P<column>\d+)\)):\s*")
_DUMP = re.compile(r"^\s*\d*\s*\|")


def reason(text: str) -> str:
    """The gist of an error: its last ``error:`` line if there is one, else its first line."""
    lines = [line for line in text.splitlines() if line.strip() and not _DUMP.match(line)]
    if not lines:
        return "no reason is given."
    if lines[0].startswith("NoExtension"):
        return "no text can match it."
    if "initial lexer configuration" in text or "lexer precomputation" in text:
        return "it is too large."
    place = _PLACE.match(lines[0])
    first = lines[0][place.end() :] if place else lines[0]
    told = [line.strip()[7:] for line in lines[1:] if line.strip().startswith("error: ")]
    gist = " ".join((told[-1] if told else first).split())
    if len(gist) > MOST:
        gist = gist[:MOST] + "…"
    if place and int(place["line"]) > 1:
        gist = f"{gist.rstrip('.')} (line {place['line']})"
    return gist if gist.endswith((".", "…")) else gist + "."
