"""Native sampling: choice for choice what ``backends.reference.sampling`` specifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.backends.cpu.native import native
from gristmill.backends.ops import F32, Choice, Chooser
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

_WORD = (1 << 64) - 1


class CpuChooser:
    """Implements ``ops.Chooser``; ``native`` is the C++ object."""

    __slots__ = ("native",)

    def __init__(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> None:
        for token, _ in params.logit_bias:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"logit_bias names token {token}; this model has tokens 0 to {vocab - 1}.",
                    "logit_bias",
                )
        self.native: Any = native().Chooser(
            vocab,
            seed & _WORD,
            np.asarray(prompt, np.int32),
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.typical_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            params.repeat_last_n,
            list(params.logit_bias),
            -1 if params.logprobs is None else params.logprobs,
        )

    def accept(self, token: int) -> None:
        """See ``ops.Chooser``."""
        self.native.accept(token)


class CpuSampler:
    """Chooses for the rows of a step, all rows in parallel."""

    def __init__(self, pool: Any) -> None:
        self._native: Any = native().Sampler(pool)

    def choose(
        self,
        logits: F32,
        rows: Sequence[int],
        choosers: Sequence[Chooser],
        banned: Sequence[Sequence[int]],
        masks: Sequence[npt.NDArray[np.uint32] | None] | None,
    ) -> list[Choice]:
        """See ``ops.Backend.choose``. Raises EngineError when logits are not finite."""
        natives = [_own(chooser).native for chooser in choosers]
        chosen = self._native.choose(
            logits, list(rows), natives, [list(b) for b in banned], list(masks or ())
        )
        return [_choice(*c) for c in chosen]

    def logprobs(
        self, logits: F32, rows: Sequence[int], tokens: Sequence[int], top: int
    ) -> list[Choice]:
        """See ``ops.Backend.logprobs``."""
        found = self._native.logprobs(logits, list(rows), list(tokens), max(top, 0))
        return [_choice(*c) for c in found]


def _own(chooser: Chooser) -> CpuChooser:
    if not isinstance(chooser, CpuChooser):
        raise TypeError("the chooser belongs to another back end")
    return chooser


def _choice(token: int, logprob: float, top: list[tuple[int, float]]) -> Choice:
    if token < 0 or logprob != logprob:
        raise EngineError("The model's logits are not finite numbers.")
    return Choice(token, logprob, tuple(top))
