"""An engine's slots as other threads use them, and the files that they are saved to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from gristmill.backends.ops import BLOCK_TOKENS
from gristmill.engine.engine import Engine
from gristmill.engine.plan import Plan
from gristmill.kv import snapshot
from gristmill.types import Checkpoint, SlotView

T = TypeVar("T")

_SAMPLE = 64
"""Bytes looked at of every tensor: two models of one shape differ in all of them."""


class SlotFiles:
    """``serve.protocol.Slots`` of an engine. Every method waits for the engine's thread."""

    def __init__(self, engine: Engine, plan: Plan, checkpoint: Checkpoint) -> None:
        self._engine = engine
        self._plan = plan
        self._checkpoint = checkpoint
        self._fingerprint: bytes | None = None

    @property
    def count(self) -> int:
        """As many as may run at once."""
        return self._plan.max_running

    def views(self) -> list[SlotView]:
        """All slots at one moment."""
        return self._do(self._engine.slots.views)

    def save(self, slot: int, path: Path) -> tuple[int, int]:
        """See ``serve.protocol.Slots``. The file is there whole, or as it was before."""
        taken = self._engine.prefixes.save(slot, self._do)
        return len(taken.tokens), snapshot.save(path, taken, self.fingerprint())

    def restore(self, slot: int, path: Path) -> tuple[int, int]:
        """See ``serve.protocol.Slots``. The file is checked to its end before it is used."""
        facts = self._plan.facts
        read = snapshot.load(path, self.fingerprint(), facts.block_bytes, self._plan.context)
        self._engine.prefixes.restore(slot, read, self._do)
        return len(read.tokens), read.size

    def erase(self, slot: int) -> int:
        """See ``serve.protocol.Slots``."""
        return self._do(partial(self._engine.prefixes.erase, slot))

    def clear(self) -> None:
        """See ``serve.protocol.Slots``."""
        self._do(self._engine.prefixes.clear)

    def fingerprint(self) -> bytes:
        """32 bytes that are equal only for blocks that mean the same here."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self._plan, self._checkpoint)
        return self._fingerprint

    def _do(self, work: Callable[[], T]) -> T:
        return self._engine.between(work).result(self._plan.step_timeout)


def fingerprint_of(plan: Plan, checkpoint: Checkpoint) -> bytes:
    """The same, of a plan."""
    facts = plan.facts
    # The backend's level too: bfloat16 lies in pairs where a level multiplies it.
    layout = (facts.backend, plan.kv_dtype, facts.states, facts.block_bytes, BLOCK_TOKENS)
    if facts.quantisation:  # other weights than the file's
        layout = (*layout, facts.quantisation)
    return fingerprint(checkpoint, layout, plan.context)


def fingerprint(checkpoint: Checkpoint, layout: tuple[object, ...], context: int) -> bytes:
    """Covers the metadata's single values, the tensors' names, shapes, encodings and some bytes
    of each, and the layout of blocks; for a model whose rotation depends on it, the context."""
    digest = blake2b(digest_size=32)

    def add(value: object) -> None:
        digest.update(repr(value).encode("utf-8", "surrogatepass") + b"\0")

    add(layout)
    metadata: Mapping[str, object] = checkpoint.metadata
    for key in sorted(metadata):
        # What the model is called is not what it is.
        told = key.startswith(("general.", "tokenizer."))
        if isinstance(metadata[key], str | int | float) and not told:
            add((key, metadata[key]))
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        add((name, tensor.encoding, tensor.shape))
        middle = len(tensor.data) // 2
        digest.update(bytes(tensor.data[middle : middle + _SAMPLE]))
        if "rope_factors" in name:
            add(context)
    return digest.digest()
