"""The CPU back end: packs weights, compiles programs, chooses tokens, all on one thread pool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.backends.cpu import fuse, weights
from gristmill.backends.cpu.emit import emit
from gristmill.backends.cpu.native import native
from gristmill.backends.cpu.record import Recorder, columns
from gristmill.backends.cpu.sample import CpuChooser, CpuSampler
from gristmill.backends.cpu.state import CpuMemory
from gristmill.backends.ops import (
    F32,
    Batch,
    Choice,
    Chooser,
    Memory,
    Ops,
    Wanted,
    X,
)
from gristmill.types import RawTensor, SamplingParams, StateSpec

log = logging.getLogger("gristmill.cpu")


class CpuProgram:
    """Implements ``ops.Program``."""

    def __init__(self, recorder: Recorder, result: X, memory: CpuMemory, pool: Any, eager: bool):
        self._memory, self._eager = memory, eager
        self._result = recorder.whole(columns(result))
        nodes = recorder.nodes
        self._vocab = min(node.args["table"].n for node in nodes if node.kind == "embed")
        if not eager:
            nodes = fuse.residual_into_linear(nodes, self._result.value)
        nodes = fuse.panels(nodes, fuse=not eager)
        fuse.drop_unread(nodes, self._result.value)
        self.native, self._slot = emit(nodes, self._result, pool, share=not eager)

    def run(self, batch: Batch) -> F32:
        """See ``ops.Program``."""
        return self.native.run(
            self._slot,
            self._result.width,
            self._vocab,
            self._memory.native,
            batch.ids,
            batch.positions,
            batch.spans,
            list(batch.tables),
            batch.outputs,
            self._eager,
        )


class _Pools:
    """Thread pools that several back ends share: one for each level and number of threads.

    A pool plays one region at a time. Two models on pools of their own would be two crews on
    the same cores, each spinning for work of a partner that the other crew has displaced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[tuple[str, int], int] = {}
        self._pools: dict[tuple[str, int], Any] = {}

    def take(self, threads: int) -> Any:
        """A pool of so many threads, of the level in use now; to be given back."""
        key = native().ISA, threads
        with self._lock:
            if key not in self._pools:
                self._pools[key] = native().Pool(threads)
            self._users[key] = self._users.get(key, 0) + 1
            return self._pools[key]

    def give_back(self, level: str, threads: int) -> None:
        """The last one to do so ends the threads (once nothing else holds the pool)."""
        key = level, threads
        with self._lock:
            self._users[key] -= 1
            if self._users[key] == 0:
                del self._users[key], self._pools[key]


_pools = _Pools()


class CpuBackend:
    """Implements ``ops.Backend`` on the native module of this processor's level."""

    def __init__(self, threads: int) -> None:
        self.isa: str = native().ISA
        self.name = f"cpu ({self.isa})"
        self.threads = threads
        self._pool: Any = _pools.take(threads)
        self._sampler = CpuSampler(self._pool)
        self._decoded: dict[str, tuple[int, int, int]] = {}
        """Encoding without a native layout → tensors, their bytes in the file and in memory."""

    def pack(self, wanted: Wanted, tensors: Mapping[str, RawTensor]) -> weights.Packed:
        """See ``ops.Backend``."""
        packed = weights.pack(wanted, tensors, self._pool)
        if not isinstance(packed, weights.CpuVector):
            for part in packed.decoded:
                count, stored, now = self._decoded.get(part.encoding, (0, 0, 0))
                sizes = (count + 1, stored + part.stored, now + part.floats)
                self._decoded[part.encoding] = sizes
        return packed

    def give_way(self, on: bool) -> None:
        """See ``ops.Backend``."""
        pool = getattr(self, "_pool", None)  # none once it is closed
        if pool is not None:
            pool.give_way(on)

    def kv_dtype(self, asked: str) -> str:
        """See ``ops.Backend``: bfloat16 where the processor multiplies it."""
        if asked != "auto":
            return asked
        return "bf16" if native().MULTIPLIES_BF16 else "f16"

    def memory(self, states: Sequence[StateSpec], kv_dtype: str) -> CpuMemory:
        """See ``ops.Backend``."""
        return CpuMemory(states, kv_dtype)

    def compile(
        self, forward: Callable[[Ops], X], memory: Memory, eager: bool = False
    ) -> CpuProgram:
        """See ``ops.Backend``. ``eager`` plays node by node, nothing fused: for tests."""
        assert isinstance(memory, CpuMemory)
        self._tell_decoded()
        recorder = Recorder(memory)
        return CpuProgram(recorder, forward(recorder), memory, self._pool, eager)

    def _tell_decoded(self) -> None:
        for encoding, (count, stored, now) in self._decoded.items():
            log.warning(
                "%s has no native layout: %d tensors were decoded to floats and take %.1f MB "
                "instead of the file's %.1f MB.",
                encoding.upper(),
                count,
                now / 1e6,
                stored / 1e6,
            )
        self._decoded.clear()

    def chooser(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> CpuChooser:
        """See ``ops.Backend``."""
        return CpuChooser(params, seed, vocab, prompt)

    def choose(
        self,
        logits: F32,
        rows: Sequence[int],
        choosers: Sequence[Chooser],
        banned: Sequence[Sequence[int]],
        masks: Sequence[npt.NDArray[np.uint32] | None] | None = None,
    ) -> list[Choice]:
        """See ``ops.Backend``."""
        return self._sampler.choose(logits, rows, choosers, banned, masks)

    def logprobs(
        self, logits: F32, rows: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[Choice]:
        """See ``ops.Backend``."""
        return self._sampler.logprobs(logits, rows, tokens, top)

    def close(self) -> None:
        """See ``ops.Backend``."""
        if hasattr(self, "_pool"):
            del self._sampler, self._pool
            _pools.give_back(self.isa, self.threads)
