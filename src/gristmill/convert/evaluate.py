"""How well a model predicts a text, and how far another is from it: llama.cpp's measures.

The text is cut into windows of so many tokens, each a context of its own; of each only the second
half is judged, so that every judged token has at least half a window before it. Where the
tokenizer begins texts with a token, each window's first token is replaced by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from gristmill import backends, models
from gristmill.backends.ops import BLOCK_TOKENS, Batch, state_groups
from gristmill.engine.loader import pack
from gristmill.errors import UsageError
from gristmill.text.tokenizer import Tokenizer
from gristmill.types import Checkpoint

F32 = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
_STEP = 64
"""Tokens computed at once; their logits are all in memory."""


@dataclass(frozen=True)
class Perplexity:
    """e to the mean of −ln p over the judged tokens; ``error`` is its standard error."""

    perplexity: float
    error: float
    tokens: int
    windows: int


@dataclass(frozen=True)
class Difference:
    """From the reference's distribution to the model's, over the judged tokens.

    ``kl``: mean Kullback–Leibler divergence (natural log), ``kl_error`` its standard error,
    ``kl_99`` the value that 99 of 100 tokens stay below, ``same_top`` the share of tokens whose
    likeliest is the same, ``reference`` the reference's own perplexity.
    """

    kl: float
    kl_error: float
    kl_99: float
    same_top: float
    reference: Perplexity


class Evaluated:
    """A model loaded to be judged, its contexts at most ``window`` tokens."""

    def __init__(
        self, checkpoint: Checkpoint, window: int, *, threads: int | None, kv_dtype: str
    ) -> None:
        checkpoint = models.understand(checkpoint)
        model = models.build(checkpoint, window)
        if window > model.config.context:
            raise UsageError(
                f"The model was made for {model.config.context} tokens; a window of {window} is "
                "longer."
            )
        self.tokenizer = Tokenizer.of(checkpoint)
        self.vocab = model.config.vocab
        self.place = backends.open("cpu", threads)
        weights = pack(self.place, model.wanted(), checkpoint, lambda share: None)
        memory = self.place.memory(model.states(), self.place.kv_dtype(kv_dtype))
        self._groups = len(state_groups(model.states()))
        self._blocks = -(-window // BLOCK_TOKENS)
        for group in range(self._groups):
            memory.resize(group, self._blocks)
        self._program = self.place.compile(partial(model.forward, weights=weights), memory)

    def log_probabilities(self, window: Sequence[int], first: int) -> Iterator[F32]:
        """ln p of every token after position ``first``, first + 1, …, in pieces [n, vocab]; not
        after the last."""
        table = np.arange(self._blocks, dtype=np.int32)[None]
        ends = sorted({*range(_STEP, len(window), _STEP), first, len(window) - 1} - {0})
        start = 0
        for end in ends:
            wanted = range(max(first - start, 0), end - start) if end > first else range(0)
            count = end - start
            batch = Batch(
                np.array(window[start:end], np.int32),
                np.arange(start, end, dtype=np.int32),
                np.array([[0, count, start]], np.int32),
                (table,) * self._groups,
                np.array(wanted if len(wanted) else [count - 1], np.int32),
            )
            logits = self._program.run(batch)
            if len(wanted):
                yield _log_softmax(logits)
            start = end

    def close(self) -> None:
        """End its threads."""
        self.place.close()


def _log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    return (shifted - np.log(sums)).astype(np.float32)


def windows_of(tokenizer: Tokenizer, text: str, window: int, most: int | None) -> list[list[int]]:
    """The text's windows of ``window`` tokens; what is left over is not judged.

    Raises UsageError for a text of less than two windows.
    """
    ids = tokenizer.encode(text, add_special=True, parse_special=False)
    if len(ids) < 2 * window:
        raise UsageError(
            f"The text has {len(ids)} tokens; at least two windows of {window} are needed."
        )
    count = min(len(ids) // window, most or len(ids))
    found = [ids[i * window : (i + 1) * window] for i in range(count)]
    if tokenizer.add_bos and tokenizer.bos is not None:
        found = [[tokenizer.bos, *one[1:]] for one in found]
    return found


def evaluate(
    model: Evaluated,
    windows: Sequence[Sequence[int]],
    reference: Evaluated | None = None,
    progress: Progress | None = None,
) -> tuple[Perplexity, Difference | None]:
    """Judge a model on windows of one length, and against ``reference`` if given.

    Raises UsageError if the two have other vocabularies.
    """
    if reference is not None and model.vocab != reference.vocab:
        raise UsageError(
            f"The models have vocabularies of {model.vocab} and {reference.vocab} tokens: their "
            "distributions cannot be compared."
        )
    own, others = list[F32](), list[F32]()
    kls, same = list[F32](), list[npt.NDArray[np.bool_]]()
    for done, window in enumerate(windows):
        first = len(window) // 2
        pieces = model.log_probabilities(window, first)
        theirs = None if reference is None else reference.log_probabilities(window, first)
        at = first + 1
        for mine in pieces:
            following = np.array(window[at : at + len(mine)])[:, None]
            own.append(np.take_along_axis(mine, following, axis=1)[:, 0])
            if theirs is not None:
                base = next(theirs)
                others.append(np.take_along_axis(base, following, axis=1)[:, 0])
                kls.append((np.exp(base) * (base - mine)).sum(axis=1, dtype=np.float64))
                same.append(base.argmax(axis=1) == mine.argmax(axis=1))
            at += len(mine)
        if progress is not None:
            progress(done + 1, len(windows))
    result = _perplexity(np.concatenate(own), len(windows))
    if reference is None:
        return result, None
    kl = np.concatenate(kls)
    difference = Difference(
        kl=float(kl.mean()),
        kl_error=float(kl.std(ddof=1) / math.sqrt(len(kl))),
        kl_99=float(np.quantile(kl, 0.99)),
        same_top=float(np.concatenate(same).mean()),
        reference=_perplexity(np.concatenate(others), len(windows)),
    )
    return result, difference


def _perplexity(log_probabilities: F32, windows: int) -> Perplexity:
    loss = -log_probabilities.astype(np.float64)
    value = math.exp(min(float(loss.mean()), 700.0))
    error = value * float(loss.std()) / math.sqrt(max(len(loss) - 1, 1))
    return Perplexity(value, error, len(loss), windows)
