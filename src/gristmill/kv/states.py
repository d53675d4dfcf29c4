"""Which states of a recurrent layer a sequence holds: plain arithmetic over its table.

A block of a ``Slot`` group is not of 32 tokens but of all before its end: entry i of a table is
the state after the last computed token of ``[32·i, 32·(i+1))``. A sequence needs the one it goes
on from and the one that its step ends in; others in between are checkpoints, which later prompts
go on from. Most entries are empty::

    tokens     0 ........ 31 | 32 ....... 63 | 64 ....... 95 | 96 .... 107
    entries        -1        |    state 4    |      -1       |   state 9
                  passed       a checkpoint        passed      after token 107
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence

from gristmill.kv.groups import Group

EMPTY = -1
LOOKS_BACK = 2
"""As a window: the next token looks at the state after the one before it."""
INTERVAL = 16
"""Blocks from one checkpoint to the next, beside those at marks: 512 tokens."""


def is_checkpoint(entry: int, marks: Collection[int]) -> bool:
    """Whether the state at the end of this entry's block is worth keeping."""
    return (entry + 1) % INTERVAL == 0 or entry + 1 in marks


def wanted(row: array[int], start: int, last: int, marks: Collection[int]) -> list[int]:
    """Entries that lack a block, if a sequence whose state is in ``start`` computes to ``last``."""
    held = len(row)
    return [
        entry
        for entry in range(start, last + 1)
        if (entry == last or is_checkpoint(entry, marks)) and (entry >= held or row[entry] < 0)
    ]


def spare(row: array[int], start: int, last: int, marks: Collection[int]) -> list[int]:
    """Entries whose blocks were taken for the end of a step that became another."""
    return [
        entry
        for entry in range(start + 1, len(row))
        if row[entry] >= 0 and entry != last and not is_checkpoint(entry, marks)
    ]


def hold(
    group: Group,
    row: array[int],
    start: int,
    marks: Collection[int],
    entries: Sequence[int],
    ensure: Callable[[int], bool],
) -> bool:
    """Have ``entries`` hold blocks: spare ones, or new ones if ``ensure`` finds so many; False,
    with nothing changed, if it does not."""
    entries = [entry for entry in entries if entry >= len(row) or row[entry] == EMPTY]
    if not entries:
        return True
    free = spare(row, start, entries[-1], marks)
    if not ensure(max(0, len(entries) - len(free))):
        return False
    row.extend([EMPTY] * (entries[-1] + 1 - len(row)))
    for entry in entries:
        if free:
            other = free.pop()
            row[entry], row[other] = row[other], EMPTY
        else:
            row[entry] = group.take()
    return True


def longest_whole(tails: Sequence[Mapping[int, int]], most: Sequence[int]) -> int:
    """The longest tail that all recurrent groups have, and of which the others have as much: a
    state is that of all its tokens, so a part of them will not do."""
    common = set(tails[0]).intersection(*tails)
    return max((length for length in common if length <= min(most, default=length)), default=0)
