"""The reference back end: numpy in float64, one op after another, nothing clever.

It is the specification that every other back end is tested against. It reads weights with
``quant.decode`` and keeps matrices in float32 (what ``decode`` gives), all else in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import F32, Batch, Choice, Memory, Ops, Wanted, X
from gristmill.backends.reference import sampling
from gristmill.backends.reference.ops import Array, ReferenceOps, Values
from gristmill.backends.reference.state import ReferenceMemory
from gristmill.errors import FormatError, UsageError
from gristmill.quant import decode, paired
from gristmill.types import RawTensor, SamplingParams, StateSpec


class ReferenceProgram:
    """A forward that is simply called again for every batch."""

    def __init__(self, forward: Callable[[Ops], X], memory: ReferenceMemory) -> None:
        self._forward = forward
        self._memory = memory

    def run(self, batch: Batch) -> F32:
        """Logits float32 [S, vocab] of ``batch.outputs``; the memory is written."""
        result = self._forward(ReferenceOps(batch, self._memory))
        if not isinstance(result, Values):
            raise TypeError("a forward must return what the ops gave it")
        return result.data.astype(np.float32)


class ReferenceBackend:
    """See ``backends.ops.Backend``."""

    name = "reference (numpy)"
    threads = 1

    def pack(self, wanted: Wanted, tensors: Mapping[str, RawTensor]) -> Array:
        """Decode the parts and stack them by rows. Raises FormatError (missing, wrong shape)."""
        pieces: list[npt.NDArray[np.float32]] = []
        for part in wanted.parts:
            tensor = tensors.get(part.tensor)
            if tensor is None:
                raise FormatError(f"The file has no tensor {part.tensor!r}, which the model needs.")
            piece = decode(paired(tensor, part.heads) if part.heads else tensor)
            piece = piece if part.expert is None else piece[part.expert]
            piece = piece if part.rows is None else piece[slice(*part.rows)]
            piece = piece.reshape(-1) if wanted.kind == "vector" else piece
            piece = piece.T if part.turned else piece
            piece = piece[None] if part.row else piece
            pieces.append(np.concatenate([piece[0::2], piece[1::2]]) if part.dealt else piece)
        if len({piece.shape[1:] for piece in pieces}) == 1:
            data = np.concatenate(pieces)
            if wanted.kind == "experts" and len(data) == wanted.shape[0] * wanted.shape[1]:
                data = data.reshape(wanted.shape)
            if data.shape == wanted.shape:
                return Array(data + np.float32(wanted.plus) if wanted.plus else data)
        names = ", ".join(part.tensor for part in wanted.parts)
        shapes = ", ".join(str(piece.shape) for piece in pieces)
        raise FormatError(
            f"The tensors of {wanted.name!r} ({names}) have shapes {shapes}; "
            f"the model's metadata says {wanted.shape} in all."
        )

    def give_way(self, on: bool) -> None:
        """See ``ops.Backend``: it has no threads of its own."""

    def kv_dtype(self, asked: str) -> str:
        """See ``ops.Backend``."""
        return "f16" if asked == "auto" else asked

    def memory(self, states: Sequence[StateSpec], kv_dtype: str) -> ReferenceMemory:
        """State memory, empty. Raises UsageError for an unknown dtype."""
        return ReferenceMemory(states, kv_dtype)

    def compile(self, forward: Callable[[Ops], X], memory: Memory) -> ReferenceProgram:
        """A program that calls ``forward`` for every batch."""
        if not isinstance(memory, ReferenceMemory):
            raise TypeError("the memory belongs to another back end")
        return ReferenceProgram(forward, memory)

    def chooser(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> sampling.ReferenceChooser:
        """Sampling state for one answer. Raises RequestError for a bias beyond the vocabulary."""
        return sampling.ReferenceChooser(params, seed, vocab, prompt)

    def choose(
        self,
        logits: F32,
        rows: Sequence[int],
        choosers: Sequence[object],
        banned: Sequence[Sequence[int]],
        masks: Sequence[npt.NDArray[np.uint32] | None] | None = None,
    ) -> list[Choice]:
        """Choose one token per chooser and accept it; see ``sampling``."""
        choices: list[Choice] = []
        for i, chooser in enumerate(choosers):
            if not isinstance(chooser, sampling.ReferenceChooser):
                raise TypeError("the chooser belongs to another back end")
            mask = None if masks is None else masks[i]
            choice = sampling.choose(logits[rows[i]], chooser, banned[i], mask)
            chooser.accept(choice.token)
            choices.append(choice)
        return choices

    def logprobs(
        self, logits: F32, rows: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[Choice]:
        """The log-probability of given tokens in given rows, with the ``top`` best."""
        return [
            sampling.raw_logprob(logits[row], token, top)
            for row, token in zip(rows, tokens, strict=True)
        ]

    def close(self) -> None:
        """Nothing is held."""


def open_backend(threads: int | None = None) -> ReferenceBackend:
    """The reference uses numpy's own threads: ``threads`` may only be 1 or None."""
    if threads not in (None, 1):
        raise UsageError(f"The reference back end has one thread, not {threads}.")
    return ReferenceBackend()
