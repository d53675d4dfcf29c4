"""Numbered slots, as llama-server's clients know them: who runs where, and what ran there last.

The engine has no slots of its own: a sequence takes blocks from the shared pool. A slot is a
number that a sequence has while it runs, and the memory of its tokens afterwards, by which the
prefix cache can be asked for them. Used by the engine's thread only.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from gristmill.engine.sequence import Sequence
from gristmill.types import SlotView


@dataclass(slots=True)
class _Slot:
    number: int
    sequence: Sequence | None = None
    busy: bool = False
    tokens: array[int] = field(default_factory=lambda: array("i"))
    salt: str = ""
    used: int = 0


class Slots:
    """As many slots as sequences may run at once."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot(number) for number in range(count)]
        self._clock = 0

    def take(self, sequence: Sequence) -> None:
        """Number a sequence that begins to run. It has no number while all are taken, which
        happens when one that was put back into the line keeps its own."""
        slot = self._choose(sequence)
        if slot is None:
            return
        slot.sequence, slot.busy = sequence, True
        sequence.output.slot = slot.number

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended: its slot remembers those of its tokens that were computed."""
        number = sequence.output.slot
        if number < 0 or self._slots[number].sequence is not sequence:
            return
        slot = self._slots[number]
        self._clock += 1
        slot.busy, slot.used = False, self._clock
        slot.tokens = sequence.tokens[: sequence.computed]
        slot.salt = sequence.request.cache_salt
        if not sequence.request.cache:
            slot.tokens = array("i")

    def set(self, number: int, tokens: array[int], salt: str = "") -> None:
        """What a slot that is not busy remembers."""
        slot = self._slots[number]
        slot.tokens, slot.salt, slot.sequence = tokens, salt, None

    def busy(self, number: int) -> bool:
        """Whether a sequence runs in it."""
        return self._slots[number].busy

    def content(self, number: int) -> tuple[array[int], str]:
        """The tokens of the sequence that ran there last, and its salt."""
        slot = self._slots[number]
        return slot.tokens, slot.salt

    def views(self) -> list[SlotView]:
        """All of them."""
        return [_view(slot) for slot in self._slots]

    def _choose(self, sequence: Sequence) -> _Slot | None:
        """The one asked for, one whose text the prompt goes on with, or the longest unused."""
        wanted = sequence.request.slot
        if 0 <= wanted < len(self._slots) and not self._slots[wanted].busy:
            return self._slots[wanted]
        free = [slot for slot in self._slots if not slot.busy]
        prompt, salt = sequence.tokens, sequence.request.cache_salt

        def rank(slot: _Slot) -> tuple[int, int]:
            held = len(slot.tokens)
            goes_on = slot.salt == salt and 0 < held <= len(prompt) and prompt[:held] == slot.tokens
            return (-held if goes_on else 0, slot.used)

        return min(free, key=rank, default=None)


def _view(slot: _Slot) -> SlotView:
    sequence = slot.sequence
    if sequence is None:
        return SlotView(slot.number, tokens=tuple(slot.tokens))
    prompt, cached = sequence.prompt_tokens, sequence.cached or 0
    limit = sequence.request.sampling.max_tokens
    return SlotView(
        number=slot.number,
        task=sequence.order[1],
        busy=slot.busy,
        sampling=sequence.request.sampling,
        limit=-1 if limit is None else limit,
        tokens=tuple(sequence.tokens if slot.busy else slot.tokens),
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=max(0, min(sequence.computed, prompt) - cached),
        generated_tokens=sequence.output.generated,
        left=max(0, sequence.end - len(sequence.tokens)) if slot.busy else 0,
        several_lines=sequence.output.several_lines,
    )
