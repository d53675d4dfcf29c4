"""Sets of characters: sorted ranges of code points, without surrogates."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""First and last of each range, ascending, with gaps between them."""

ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
NONE: Ranges = ()


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """One set of all that lies in any of them; surrogates are left out."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(part for each in merged for part in _without_surrogates(*each))


def inverse(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for first, last in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    gaps.append((start, 0x10FFFF))
    return union(gap for gap in gaps if gap[0] <= gap[1])


def meet(a: Ranges, b: Ranges) -> bool:
    """Whether two sets share a character."""
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


def pattern(ranges: Ranges) -> str:
    """A regular expression's class."""
    parts = [
        f"\\x{{{first:X}}}" if first == last else f"\\x{{{first:X}}}-\\x{{{last:X}}}"
        for first, last in ranges
    ]
    return "[" + "".join(parts) + "]"


def _without_surrogates(first: int, last: int) -> list[tuple[int, int]]:
    parts = [(first, min(last, 0xD7FF)), (max(first, 0xE000), last)]
    return [part for part in parts if part[0] <= part[1]]
