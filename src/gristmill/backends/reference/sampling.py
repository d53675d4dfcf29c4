"""How the next token is chosen: the specification, which native samplers equal choice for choice.

All arithmetic is float64 on the float32 logits of one row. "Sorted" always means by logit,
largest first, ties by smaller id. In this order:

1. **Allowed.** A token is out if the bitmask has its bit clear (bit ``id % 32`` of word
   ``id // 32``), if ``allowed_token_ids`` lack it, if it is banned, if its logit bias is −100 or
   less, or if it is the last of one of the ``bad_words`` and the answer ends with the others. If
   nothing is left, bans, biases and bad words are forgotten; if that is not enough, the allowed
   ids too; and at last the mask.
2. **Bias.** logit += its bias (biases of one id add up), unless it is −100 or less.
3. **The chain**: the steps of ``backends.chain.steps``, each on the candidates that the one
   before has left. Candidates are the allowed tokens whose logit is not −infinity; where there
   are none, the smallest allowed id is chosen. Every step keeps at least one. The steps are
   those of ``steps.py``, where each is told.
4. **Draw.** n = tokens of this answer accepted so far, seed modulo 2^64, w = exp(logit):
   u = (mix(mix(seed) + (n + 1) · G) >> 11) · 2^−53, all modulo 2^64, with
   G = 0x9E3779B97F4A7C15 and mix the finalizer of splitmix64 (below). Chosen is the first
   candidate, *in order of ids*, whose running sum of w exceeds u · Σ w; the last one if rounding
   leaves none.

A sampler that sums in another order may differ where u or a threshold falls within rounding
(1e-15) of a border, which a test with random logits does not meet.

Logits that are NaN or +infinity are an EngineError. Log-probabilities, where asked, are of the
raw logits, before step 1: logit − ln Σ exp(logit), with the ``n`` best sorted; there are none,
and asking is an EngineError, where every logit is −infinity. With ``post_sampling`` they are of
the weights that the draw is made from, and only what may be drawn is among the best. Where they
are not asked, ``Choice.logprob`` is 0 and ``Choice.top`` empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gristmill.backends import chain
from gristmill.backends.ops import Choice
from gristmill.backends.reference import steps
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

F64 = npt.NDArray[np.float64]

BAN = -100.0
"""A logit bias of this or less forbids its token."""

_NOT_FINITE = "The model's logits are not finite numbers."
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STREAM = 0xD1B54A32D192ED03


def mix(x: int) -> int:
    """splitmix64's finalizer: 64 bits to 64 well-mixed bits (Steele et al., OOPSLA 2014)."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def uniform(seed: int, accepted: int, stream: int = 0) -> float:
    """The random number in [0, 1) of an answer's next token.

    Stream 0 is for the draw; the i-th XTC of a chain, from 1 on, throws its coin with stream i.
    """
    start = mix(seed ^ (stream * _STREAM & _WORD))
    return (mix(start + (accepted + 1) * _GOLDEN) >> 11) * 2.0**-53


class ReferenceChooser:
    """One answer's sampling state: its parameters, its seed, its tokens.

    ``mu`` is mirostat's, ``weighted`` and ``total`` adaptive-p's memory; ``pending`` is what the
    last choice will do to them once it is accepted.
    """

    def __init__(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> None:
        check_ids(params, vocab)
        self.params = params
        self.chain = chain.steps(params)
        self.seed = seed
        self.vocab = vocab
        self.history = list(prompt)
        self.prompt = len(self.history)
        self.accepted = 0
        self.mu = 2 * params.mirostat_tau
        decay = min(max(params.adaptive_decay, 0.0), 0.99)
        self.weighted, self.total = params.adaptive_target / (1 - decay), 1 / (1 - decay)
        self.pending: tuple[int, float, float, float] | None = None

    def accept(self, token: int) -> None:
        """Add a token to the history."""
        self.history.append(token)
        self.accepted += 1
        if self.pending is not None and self.pending[0] == token:
            _, self.mu, self.weighted, self.total = self.pending
        self.pending = None


def check_ids(params: SamplingParams, vocab: int) -> None:
    """Raise RequestError for ids that are not in the vocabulary."""
    biased = [token for token, _ in params.logit_bias]
    bad = [token for word in params.bad_words for token in word]
    for name, ids in (
        ("logit_bias", biased),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("bad_words", bad),
    ):
        for token in ids:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"{name} names token {token}; this model has tokens 0 to {vocab - 1}.", name
                )


def choose(
    row: npt.NDArray[np.float32],
    chooser: ReferenceChooser,
    banned: Sequence[int],
    mask: npt.NDArray[np.uint32] | None,
) -> Choice:
    """Choose from one row of logits [vocab]; does not accept the choice."""
    raw = row.astype(np.float64)
    if np.isnan(raw).any() or np.isposinf(raw).any():
        raise EngineError(_NOT_FINITE)
    params = chooser.params
    logits = biased(raw, params)
    allowed = np.flatnonzero(_allowed(chooser, banned, mask))
    ids = allowed[~np.isneginf(logits[allowed])]
    chooser.pending = None
    if not len(ids):
        state = steps.State(allowed[:1], np.zeros(1), 0.0)
    else:
        state = steps.State.of(ids, logits[ids])
        for place, name in enumerate(chooser.chain):
            steps.apply(state, name, place, chooser)
    token = _draw(state.ids, state.weights(), uniform(chooser.seed, chooser.accepted))
    steps.remember(state, token, chooser)
    if params.logprobs is None:
        return Choice(token, 0.0, ())
    if params.post_sampling:
        return _post(state, token, params.logprobs)
    return raw_logprob(row, token, params.logprobs)


def raw_logprob(row: npt.NDArray[np.float32], token: int, top: int) -> Choice:
    """A token's log-probability in the raw distribution, with the ``top`` best."""
    raw = row.astype(np.float64)
    largest = raw.max()
    if not np.isfinite(largest):  # so also where one is NaN
        raise EngineError(_NOT_FINITE)
    logprobs = raw - largest - np.log(np.exp(raw - largest).sum())
    best = np.lexsort((np.arange(len(raw)), -raw))[: max(top, 0)]
    return Choice(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


def _post(state: steps.State, token: int, top: int) -> Choice:
    logprobs = state.logits - state.logits.max() - np.log(state.weights().sum())
    order = np.lexsort((state.ids, -logprobs))
    chosen = float(logprobs[np.flatnonzero(state.ids == token)[0]])
    best = [(int(state.ids[i]), float(logprobs[i])) for i in order[: max(top, 0)]]
    return Choice(token, chosen, tuple(best))


def _allowed(
    chooser: ReferenceChooser, banned: Sequence[int], mask: npt.NDArray[np.uint32] | None
) -> npt.NDArray[np.bool_]:
    """Step 1."""
    params, vocab = chooser.params, chooser.vocab
    masked = np.ones(vocab, np.bool_)
    if mask is not None:
        ids = np.arange(vocab)
        masked = (mask[ids // 32] >> (ids % 32).astype(np.uint32) & 1).astype(np.bool_)
    listed = masked
    if params.allowed_token_ids is not None:
        listed = np.zeros(vocab, np.bool_)
        listed[list(params.allowed_token_ids)] = True
        listed &= masked
    allowed = listed.copy()
    allowed[list(banned)] = False
    allowed[[token for token, bias in params.logit_bias if bias <= BAN]] = False
    answer = chooser.history[chooser.prompt :]
    for word in params.bad_words:
        before = list(word[:-1])
        if word and before == answer[len(answer) - len(before) :]:
            allowed[word[-1]] = False
    for each in (allowed, listed, masked):
        if each.any():
            return each
    return np.ones(vocab, np.bool_)


def biased(raw: F64, params: SamplingParams) -> F64:
    """Step 2. No sum of biases makes a NaN or an infinity."""
    logits = raw.copy()
    for token, bias in params.logit_bias:
        if bias > BAN:
            logits[token] += bias
    return np.minimum(logits, 1e300)


def penalised(raw: F64, chooser: ReferenceChooser) -> F64:
    """Logits of all tokens after repetition, frequency and presence penalty."""
    params = chooser.params
    logits = raw.copy()
    known, last = len(chooser.history), params.repeat_last_n
    first = 0 if last < 0 else max(0, known - last)
    answer = Counter(chooser.history[max(first, chooser.prompt) :])
    for token, count in Counter(chooser.history[first:]).items():
        if params.repetition_penalty != 1.0:
            positive = logits[token] > 0
            by = params.repetition_penalty
            logits[token] = logits[token] / by if positive else logits[token] * by
        counted = count if params.penalise_prompt else answer[token]
        if counted:
            logits[token] -= counted * params.frequency_penalty + params.presence_penalty
    return np.minimum(logits, 1e300)


def truncate(
    ids: npt.NDArray[np.intp], logits: F64, params: SamplingParams
) -> tuple[npt.NDArray[np.intp], F64]:
    """The candidates that a fresh answer's chain leaves of these, and their weights."""
    chooser = ReferenceChooser(params, 0, int(ids.max()) + 1, ())
    state = steps.State.of(ids, logits)
    for place, name in enumerate(chooser.chain):
        steps.apply(state, name, place, chooser)
    return state.ids, state.weights()


def _draw(ids: npt.NDArray[np.intp], weights: F64, u: float) -> int:
    """Step 4."""
    order = np.argsort(ids)
    sums: F64 = np.cumsum(weights[order])
    first = int(np.searchsorted(sums, u * float(sums[-1]), side="right"))
    return ids[order].tolist()[min(first, len(ids) - 1)]
