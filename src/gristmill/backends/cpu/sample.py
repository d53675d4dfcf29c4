"""Native sampling: choice for choice what ``backends.reference.sampling`` specifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.backends import chain
from gristmill.backends.cpu.native import native
from gristmill.backends.ops import F32, Choice, Chooser
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

_WORD = (1 << 64) - 1


_SAME = (
    "repeat_last_n",
    "post_sampling",
    "penalise_prompt",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "min_keep",
)
_STEPS: dict[str, tuple[str, ...]] = {
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "dry": ("dry_multiplier",),
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "typ_p": ("typical_p",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
}
"""The values that have no effect unless their step is in the chain."""


class CpuChooser:
    """Implements ``ops.Chooser``; ``native`` is the C++ object."""

    __slots__ = ("native",)

    def __init__(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> None:
        _check_ids(params, vocab)
        self.native: Any = native().Chooser(
            native_params(params), vocab, seed & _WORD, np.asarray(prompt, np.int32)
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


def native_params(params: SamplingParams) -> Any:
    """The C++ struct."""
    steps = chain.steps(params)
    made: Any = native().SamplingParams()
    for name in _SAME:
        setattr(made, name, getattr(params, name))
    for step, names in _STEPS.items():
        for name in names if step in steps else ():
            setattr(made, name, getattr(params, name))
    if made.temperature < chain.COLD:
        made.temperature = 0.0
    made.logit_bias = list(params.logit_bias)
    made.logprobs = -1 if params.logprobs is None else params.logprobs
    made.lists_allowed = params.allowed_token_ids is not None
    made.allowed = list(params.allowed_token_ids or ())
    made.bad_words = [list(word) for word in params.bad_words]
    if "dry" in steps:
        made.dry_breakers = [list(run) for run in params.dry_breakers]
    made.plain = chain.is_plain(steps, params)
    made.chain = [chain.STEPS.index(step) for step in steps]
    return made


def _check_ids(params: SamplingParams, vocab: int) -> None:
    ids = {
        "logit_bias": [token for token, _ in params.logit_bias],
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": [token for word in params.bad_words for token in word],
    }
    for name, tokens in ids.items():
        for token in tokens:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"{name} names token {token}; this model has tokens 0 to {vocab - 1}.", name
                )


def _own(chooser: Chooser) -> CpuChooser:
    if not isinstance(chooser, CpuChooser):
        raise TypeError("the chooser belongs to another back end")
    return chooser


def _choice(token: int, logprob: float, top: list[tuple[int, float]]) -> Choice:
    if token < 0 or logprob != logprob:
        raise EngineError("The model's logits are not finite numbers.")
    return Choice(token, logprob, tuple(top))
