"""How the next token is chosen: the specification, which native samplers equal choice for choice.

All arithmetic is float64 on the float32 logits of one row. "Sorted" always means by logit,
largest first, ties by smaller id. Steps, in this order:

1. **Allowed.** A token is out if the bitmask has its bit clear (bit ``id % 32`` of word
   ``id // 32``), if it is banned, or if its logit bias is −100 or less. If nothing is left, the
   mask alone decides (banned and biased tokens come back); if the mask is empty, every token is
   allowed.
2. **Bias.** logit += its bias (biases of one id add up), unless it is −100 or less.
3. **Penalties**, over the last ``repeat_last_n`` tokens of prompt and answer (−1: all, 0: none);
   c is how often a token occurs there. For every token with c > 0, first the repetition penalty
   r: logit / r if the logit is positive, else logit · r; then
   logit −= c · frequency_penalty + presence_penalty.
4. **Greedy.** With temperature 0 the first of the sorted allowed tokens is chosen; done. So it
   is at any temperature where every allowed logit is −infinity: the smallest allowed id.
5. **Temperature**, before every truncation (as vLLM and Hugging Face do; llama.cpp's default
   chain has it last). Candidates are the allowed tokens, sorted; weight w = exp((logit − largest
   logit) / temperature), so that no temperature can overflow.
6. **Truncation**, each on what the one before has left (llama.cpp's order), p being the weights
   divided by their sum over those left; each keeps at least one:
   a. *top_k* k > 0: the first k.
   b. *typical_p* t < 1: with entropy h = −Σ p ln p (terms with p = 0 are 0) order the candidates
      by |−ln p − h|, stably; keep the shortest run from the start whose p sum to t or more; back
      to sorted order. (Candidates with p = 0 come last.)
   c. *top_p* t < 1: the shortest run from the start whose p sum to t or more.
   d. *min_p* m > 0: those with p ≥ m · largest p (m ≥ 1 counts as 1).
7. **Draw.** n = tokens of this answer accepted so far, seed modulo 2^64:
   u = (mix(mix(seed) + (n + 1) · G) >> 11) · 2^−53, all modulo 2^64, with
   G = 0x9E3779B97F4A7C15 and mix the finalizer of splitmix64 (below). Chosen is the first
   candidate, in sorted order, whose running sum of w exceeds u · Σ w; the last one if rounding
   leaves none.

Sums run in sorted order. A sampler that sums in another order may differ where u or a threshold
falls within rounding (1e-15) of a border, which a test with random logits does not meet.

Logits that are NaN or +infinity are an EngineError. Log-probabilities, where asked, are of the
raw logits, before step 1: logit − ln Σ exp(logit), with the ``n`` best sorted; there are none,
and asking is an EngineError, where every logit is −infinity. Where they are not asked,
``Choice.logprob`` is 0 and ``Choice.top`` empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import Choice
from gristmill.errors import EngineError, RequestError
from gristmill.types import SamplingParams

F64 = npt.NDArray[np.float64]

BAN = -100.0
"""A logit bias of this or less forbids its token."""

_NOT_FINITE = "The model's logits are not finite numbers."
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """splitmix64's finalizer: 64 bits to 64 well-mixed bits (Steele et al., OOPSLA 2014)."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def uniform(seed: int, accepted: int) -> float:
    """The random number in [0, 1) of an answer's next token."""
    return (mix(mix(seed) + (accepted + 1) * _GOLDEN) >> 11) * 2.0**-53


class ReferenceChooser:
    """One answer's sampling state: its parameters, its seed, its tokens."""

    def __init__(
        self, params: SamplingParams, seed: int, vocab: int, prompt: Sequence[int]
    ) -> None:
        for token, _ in params.logit_bias:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"logit_bias names token {token}; this model has tokens 0 to {vocab - 1}.",
                    "logit_bias",
                )
        self.params = params
        self.seed = seed
        self.history = list(prompt)
        self.accepted = 0

    def accept(self, token: int) -> None:
        """Add a token to the history."""
        self.history.append(token)
        self.accepted += 1


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
    allowed = _allowed(len(raw), params, banned, mask)
    logits = penalised(raw, chooser)
    ids = np.flatnonzero(allowed)
    ids = ids[np.lexsort((ids, -logits[ids]))]
    if params.temperature == 0 or np.isneginf(logits[ids[0]]):
        token = int(ids[0])
    else:
        ids, weights = truncate(ids, logits[ids], params)
        token = _draw(ids, weights, uniform(chooser.seed, chooser.accepted))
    if params.logprobs is None:
        return Choice(token, 0.0, ())
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


def _allowed(
    vocab: int,
    params: SamplingParams,
    banned: Sequence[int],
    mask: npt.NDArray[np.uint32] | None,
) -> npt.NDArray[np.bool_]:
    """Step 1."""
    masked = np.ones(vocab, np.bool_)
    if mask is not None:
        ids = np.arange(vocab)
        masked = (mask[ids // 32] >> (ids % 32).astype(np.uint32) & 1).astype(np.bool_)
    allowed = masked.copy()
    allowed[list(banned)] = False
    allowed[[token for token, bias in params.logit_bias if bias <= BAN]] = False
    if allowed.any():
        return allowed
    return masked if masked.any() else np.ones(vocab, np.bool_)


def penalised(raw: F64, chooser: ReferenceChooser) -> F64:
    """Steps 2 and 3."""
    params = chooser.params
    logits = raw.copy()
    for token, bias in params.logit_bias:
        if bias > BAN:
            logits[token] += bias
    known, last = len(chooser.history), params.repeat_last_n
    recent = chooser.history if last < 0 else chooser.history[max(0, known - last) :]
    for token, count in Counter(recent).items():
        if params.repetition_penalty != 1.0:
            positive = logits[token] > 0
            by = params.repetition_penalty
            logits[token] = logits[token] / by if positive else logits[token] * by
        logits[token] -= count * params.frequency_penalty + params.presence_penalty
    return logits


def truncate(
    ids: npt.NDArray[np.intp], logits: F64, params: SamplingParams
) -> tuple[npt.NDArray[np.intp], F64]:
    """Steps 5 and 6: the candidates left, sorted, and their weights."""
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits[0]) / params.temperature)
    if params.top_k > 0:
        ids, weights = ids[: params.top_k], weights[: params.top_k]
    if params.typical_p < 1:
        p = weights / weights.sum()
        surprise = -np.log(p, where=p > 0, out=np.full_like(p, -np.inf))  # p = 0: infinite
        entropy = float((p * np.where(p > 0, surprise, 0)).sum())
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        kept = np.sort(order[: _run(p[order], params.typical_p)])
        ids, weights = ids[kept], weights[kept]
    if params.top_p < 1:
        n = _run(weights / weights.sum(), params.top_p)
        ids, weights = ids[:n], weights[:n]
    if params.min_p > 0:
        p = weights / weights.sum()
        kept = p >= min(params.min_p, 1.0) * p[0]
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def _run(p: F64, threshold: float) -> int:
    """Length of the shortest run from the start that sums to ``threshold`` or more."""
    return min(int(np.searchsorted(np.cumsum(p), threshold)) + 1, len(p))


def _draw(ids: npt.NDArray[np.intp], weights: F64, u: float) -> int:
    """Step 7."""
    sums: F64 = np.cumsum(weights)
    first = int(np.searchsorted(sums, u * float(sums[-1]), side="right"))
    return ids.tolist()[min(first, len(ids) - 1)]
