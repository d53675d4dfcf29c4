"""State memory on a CPU: blocks of keys and values, or of states, all layers of a group in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.backends.cpu.native import native
from gristmill.backends.ops import BLOCK_TOKENS, state_groups
from gristmill.errors import ResourceError, UsageError
from gristmill.types import Paged, Slot, StateSpec, Window

KV_TYPES = {"f16": (0, 2), "f32": (1, 4), "bf16": (2, 2)}
"""Name → number on the native side, bytes of an element."""


class CpuMemory:
    """Implements ``ops.Memory`` over native pages."""

    def __init__(self, states: Sequence[StateSpec], kv_dtype: str) -> None:
        if kv_dtype not in KV_TYPES:
            raise UsageError(
                f"The KV cache type {kv_dtype!r} is not known; it can be {', '.join(KV_TYPES)}."
            )
        self.type, size = KV_TYPES[kv_dtype]
        self._places: dict[int, tuple[StateSpec, int, int]] = {}
        block_bytes: list[int] = []
        for group, (spec, layers) in enumerate(state_groups(states)):
            if isinstance(spec, Slot):
                layer_bytes = 4 * spec.values
            else:
                layer_bytes = 2 * spec.kv_heads * spec.head_dim * BLOCK_TOKENS * size
            for index, layer in enumerate(layers):
                self._places[layer] = (spec, group, index * layer_bytes)
            block_bytes.append(layer_bytes * len(layers))
        self.native: Any = native().Memory(block_bytes)

    def place(self, layer: int) -> tuple[Paged | Window, int, int]:
        """An attention layer's spec, its group, and its offset in a block, in bytes."""
        spec, group, offset = self._places[layer]
        if isinstance(spec, Slot):
            raise TypeError(f"layer {layer} was not declared as attention")
        return spec, group, offset

    def slot(self, layer: int) -> tuple[int, int]:
        """The group of a layer with a state of fixed size, and its offset in a block, in bytes."""
        spec, group, offset = self._places[layer]
        if not isinstance(spec, Slot):
            raise TypeError(f"layer {layer} was declared as attention")
        return group, offset

    def block_bytes(self, group: int) -> int:
        """See ``ops.Memory``."""
        return self.native.block_bytes(group)

    def blocks(self, group: int) -> int:
        """See ``ops.Memory``."""
        return self.native.blocks(group)

    def resize(self, group: int, blocks: int) -> None:
        """See ``ops.Memory``."""
        try:
            self.native.resize(group, blocks)
        except MemoryError as error:
            raise ResourceError(
                f"The system refused memory for {blocks} blocks of KV cache "
                f"({blocks * self.block_bytes(group) >> 20} MiB)."
            ) from error

    def copy(self, group: int, source: int, target: int) -> None:
        """See ``ops.Memory``."""
        self.native.copy(group, source, target)

    def dump(self, group: int, block: int) -> bytes:
        """See ``ops.Memory``."""
        return self.native.dump(group, block)

    def fill(self, group: int, block: int, data: bytes) -> None:
        """See ``ops.Memory``."""
        self.native.fill(group, block, data)
