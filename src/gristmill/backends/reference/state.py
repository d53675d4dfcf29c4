"""Key and value memory in its paged layout, as plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import BLOCK_TOKENS, I32, state_groups
from gristmill.errors import UsageError
from gristmill.types import Slot, StateSpec

F64 = npt.NDArray[np.float64]

KV_DTYPES: dict[str, type[np.floating]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


class ReferenceMemory:
    """For each group of layers an array [blocks, layers, 2, BLOCK_TOKENS, kv_heads, head_dim].

    Index 0 of the third axis holds keys, 1 values. A group of ``Slot``s has one
    [blocks, layers, values], float64. New blocks are filled with NaN, so that
    reading what was never written shows.
    """

    def __init__(self, states: Sequence[StateSpec], kv_dtype: str) -> None:
        dtype = KV_DTYPES.get(kv_dtype)
        if dtype is None:
            raise UsageError(f"KV type {kv_dtype!r} is unknown here: {', '.join(KV_DTYPES)}.")
        self._place: dict[int, tuple[int, int]] = {}
        self._arrays: list[npt.NDArray[np.floating]] = []
        self._specs: list[StateSpec] = []
        for group, (spec, layers) in enumerate(state_groups(states)):
            for index, layer in enumerate(layers):
                self._place[layer] = (group, index)
            self._specs.append(spec)
            if isinstance(spec, Slot):
                self._arrays.append(np.empty((0, len(layers), spec.values), np.float64))
                continue
            shape = (0, len(layers), 2, BLOCK_TOKENS, spec.kv_heads, spec.head_dim)
            self._arrays.append(np.empty(shape, dtype))

    def spec(self, layer: int) -> StateSpec:
        """The state that ``layer`` was declared with."""
        return self._specs[self._place[layer][0]]

    def group(self, layer: int) -> int:
        """The group that ``layer`` belongs to, i.e. its block table."""
        return self._place[layer][0]

    def block_bytes(self, group: int) -> int:
        """Bytes of one block: all layers of the group, keys and values, BLOCK_TOKENS tokens."""
        array = self._arrays[group]
        return int(np.prod(array.shape[1:])) * array.itemsize

    def blocks(self, group: int) -> int:
        """Blocks there are."""
        return self._arrays[group].shape[0]

    def resize(self, group: int, blocks: int) -> None:
        """Grow or cut to ``blocks``; existing blocks keep their content."""
        old = self._arrays[group]
        new = np.full((blocks, *old.shape[1:]), np.nan, old.dtype)
        kept = min(blocks, old.shape[0])
        new[:kept] = old[:kept]
        self._arrays[group] = new

    def copy(self, group: int, source: int, target: int) -> None:
        """Copy one block onto another."""
        self._arrays[group][target] = self._arrays[group][source]

    def dump(self, group: int, block: int) -> bytes:
        """A block's content, as it lies here."""
        return self._arrays[group][block].tobytes()

    def fill(self, group: int, block: int, data: bytes) -> None:
        """Overwrite a block with what ``dump`` gave. Raises ValueError for another length."""
        array = self._arrays[group]
        array[block] = np.frombuffer(data, array.dtype).reshape(array.shape[1:])

    def write(self, layer: int, table: I32, first: int, keys: F64, values: F64) -> None:
        """Store the keys and values [n, kv_heads, head_dim] of tokens ``first``…"""
        group, index = self._place[layer]
        array = self._arrays[group]
        for i in range(len(keys)):
            block, offset = self._find(group, table, first + i)
            array[block, index, 0, offset] = keys[i]
            array[block, index, 1, offset] = values[i]

    def read(self, layer: int, table: I32, first: int, end: int) -> tuple[F64, F64]:
        """Keys and values [end − first, kv_heads, head_dim] of tokens first … end − 1."""
        group, index = self._place[layer]
        array = self._arrays[group]
        places = [self._find(group, table, token) for token in range(first, end)]
        blocks = [block for block, _ in places]
        offsets = [offset for _, offset in places]
        keys = array[blocks, index, 0, offsets].astype(np.float64)
        values = array[blocks, index, 1, offsets].astype(np.float64)
        return keys, values

    def state(self, layer: int, table: I32, tokens: int, places: slice) -> F64 | None:
        """The values of a ``Slot`` after ``tokens`` tokens, to be read or written; zeros at the
        start, None where they are not kept."""
        group, index = self._place[layer]
        array = self._arrays[group]
        if tokens == 0:
            return np.zeros(array.shape[2])[places]
        if table[(tokens - 1) // BLOCK_TOKENS] < 0:
            return None
        block, _ = self._find(group, table, tokens - 1)
        return cast(F64, array[block, index, places])

    def _find(self, group: int, table: I32, token: int) -> tuple[int, int]:
        block = int(table[token // BLOCK_TOKENS])
        if not 0 <= block < self.blocks(group):
            raise IndexError(f"token {token} is in block {block}, which is not there")
        return block, token % BLOCK_TOKENS
