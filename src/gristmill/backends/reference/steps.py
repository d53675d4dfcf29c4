"""The steps of a sampling chain, as llama.cpp and vLLM define them, in float64.

p stands for the candidates' probabilities: the softmax of their logits, over those left.

- **penalties**: over the last ``repeat_last_n`` tokens of prompt and answer (−1: all). Where a
  token occurs there, first the repetition penalty r: logit / r if the logit is positive, else
  logit · r; then logit −= c · frequency + presence, c being how often it occurs there (with
  ``penalise_prompt`` off only in the answer; nothing for c = 0).
- **dry** ("don't repeat yourself"): n = the last ``dry_penalty_last_n`` tokens. The nearest
  breaker (a run of tokens of ``dry_breakers``; the longest one that begins there) bounds what
  counts as repetition to the tokens after it. For each token of n, r = how many tokens before it
  equal the end of n, the bound at most; a token with r ≥ ``dry_allowed_length`` somewhere loses
  multiplier · base^(r − allowed length) for its largest r, unless it alone is a breaker. Nothing
  happens with ``dry_allowed_length`` tokens or fewer. The exponent stays below
  88.7228391 / ln base.
- **top_n_sigma** n: those with logit ≥ largest − n · σ, σ the standard deviation of all logits.
- **temperature** t: logit / t; 0 leaves the first of the sorted. With ``dynatemp_range`` d > 0
  and more than one candidate, t lies between max(0, t − d) and t + d: the lower one plus
  their difference times (entropy of p / ln of their number)^exponent. Mirostat has no range.
- **top_k** k: the first k of the sorted.
- **typ_p** t: with entropy h = −Σ p ln p order the candidates by |−ln p − h|, stably; keep the
  shortest run from the start whose p sum to t or more.
- **top_p** t: the shortest sorted run from the start whose p sum to t or more.
- **min_p** m: those with p ≥ m · largest p (m ≥ 1 counts as 1).
- **xtc** ("exclude top choices"), if there are two and a random number is not above
  ``xtc_probability``: drops all but the last of the sorted with p ≥ ``xtc_threshold``.
- **mirostat_1** (arXiv 2007.14966): with s the slope of ln p over the ranks of the 100 first, by
  ``_slope``, top_k of k = ((s − 1) · 2^μ / (1 − V^(1 − s)))^(1/s), V the vocabulary.
- **mirostat_2**: those with −log2 p ≤ μ. Both begin with μ = 2τ; a chosen token of probability p
  among those left makes it μ − η · (−log2 p − τ).
- **adaptive_p**: logit = 5 − 10 · d² / (1 + d) with d = |p − target'| / 0.3, where target' = 2 ·
  target − weighted / total, within 0 and 1. A chosen token whose p was p makes weighted = p +
  decay · weighted and total = 1 + decay · total; at first they are target / (1 − decay) and
  1 / (1 − decay). With a target below 0 it does nothing.

typ_p, top_p and min_p keep ``min_keep`` candidates of their order at least; xtc does nothing
where it would leave fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gristmill.backends.chain import COLD
from gristmill.types import SamplingParams

if TYPE_CHECKING:
    from gristmill.backends.reference.sampling import ReferenceChooser

F64 = npt.NDArray[np.float64]


@dataclass
class State:
    """The candidates left, sorted; a token's logit is ``logits[i] + shift``.

    The shift is the largest logit at first: differences are divided by temperatures, so that no
    temperature can overflow. ``before`` are probabilities before adaptive-p changed them.
    """

    ids: npt.NDArray[np.intp]
    logits: F64
    shift: float
    before: F64 | None = None

    @classmethod
    def of(cls, ids: npt.NDArray[np.intp], logits: F64) -> State:
        """From logits as they are."""
        order = np.lexsort((ids, -logits))
        ids, logits = ids[order], logits[order]
        return cls(ids, logits - logits[0], float(logits[0]))

    def weights(self) -> F64:
        """exp(logit), relative to the largest."""
        return np.exp(self.logits - self.logits.max())

    def p(self) -> F64:
        """Probabilities."""
        weights = self.weights()
        return weights / weights.sum()

    def keep(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> None:
        """Keep some, in sorted order."""
        self.ids, self.logits = self.ids[which], self.logits[which]

    def replace(self, change: Callable[[F64], F64]) -> None:
        """Change logits as they are, and sort again."""
        made = State.of(self.ids, change(self.logits + self.shift))
        self.ids, self.logits, self.shift = made.ids, made.logits, made.shift


def apply(state: State, name: str, place: int, chooser: ReferenceChooser) -> None:
    """One step; ``place`` is its index in the chain."""
    params = chooser.params
    if name == "penalties":
        state.replace(lambda logits: _penalties(state.ids, logits, chooser))
    elif name == "dry":
        lost = dry_penalties(chooser.history, params)
        state.replace(lambda logits: logits - [lost.get(int(i), 0.0) for i in state.ids])
    elif name == "top_n_sigma":
        bound = state.logits[0] - params.top_n_sigma * state.logits.std()
        state.keep(state.logits >= bound)
    elif name == "temperature":
        _temperature(state, params)
    elif name == "top_k":
        state.keep(slice(params.top_k))
    elif name == "typ_p":
        _typical(state, params)
    elif name == "top_p":
        state.keep(slice(max(_run(state.p(), params.top_p), params.min_keep)))
    elif name == "min_p":
        weights = state.weights()
        count = int((weights >= min(params.min_p, 1.0) * weights[0]).sum())
        state.keep(slice(max(count, params.min_keep)))
    elif name == "xtc":
        _xtc(state, place, chooser)
    elif name == "mirostat_1":
        state.keep(slice(_mirostat_count(state.logits, chooser)))
    elif name == "mirostat_2":
        surprise = -np.log2(state.p())
        state.keep(slice(max(1, int((surprise <= chooser.mu).sum()))))
    else:
        _adaptive(state, chooser)


def remember(state: State, token: int, chooser: ReferenceChooser) -> None:
    """What mirostat and adaptive-p learn from a token, if it is accepted."""
    params = chooser.params
    at = int(np.flatnonzero(state.ids == token)[0])
    mu, weighted, total = chooser.mu, chooser.weighted, chooser.total
    if params.mirostat:
        mu -= params.mirostat_eta * (-math.log2(state.p()[at]) - params.mirostat_tau)
    if state.before is not None:
        decay = min(max(params.adaptive_decay, 0.0), 0.99)
        weighted = float(state.before[at]) + decay * weighted
        total = 1 + decay * total
    chooser.pending = (token, mu, weighted, total)


def _penalties(ids: npt.NDArray[np.intp], logits: F64, chooser: ReferenceChooser) -> F64:
    from gristmill.backends.reference.sampling import penalised

    every = np.zeros(chooser.vocab)
    every[ids] = logits
    return penalised(every, chooser)[ids]


def dry_penalties(history: Sequence[int], params: SamplingParams) -> dict[int, float]:
    """What DRY takes from the logits of tokens that would go on with a repetition."""
    last, allowed = params.dry_penalty_last_n, params.dry_allowed_length
    seen = list(history if last < 0 else history[max(0, len(history) - last) :])
    bound = _since_breaker(seen, params.dry_breakers)
    if len(seen) <= allowed or bound < allowed:
        return {}
    longest: dict[int, int] = {}
    for place in range(1, len(seen)):
        run = 0
        while run < min(place, bound) and seen[place - 1 - run] == seen[-1 - run]:
            run += 1
        if run >= allowed:
            longest[seen[place]] = max(longest.get(seen[place], 0), run)
    alone = {run[0] for run in params.dry_breakers if len(run) == 1}
    most = int(88.7228391 / math.log(params.dry_base)) if params.dry_base > 1.000001 else 0
    penalties: dict[int, float] = {}
    for token, run in longest.items():
        power = min(run - allowed, most) if most > 0 else run - allowed
        if token not in alone:
            penalties[token] = params.dry_multiplier * params.dry_base**power
    return penalties


def _since_breaker(seen: Sequence[int], breakers: Sequence[Sequence[int]]) -> int:
    """How many tokens have come after the last breaker: all, without one."""
    for start in range(len(seen) - 1, -1, -1):
        found = [len(b) for b in breakers if list(b) == list(seen[start : start + len(b)])]
        if found:
            return len(seen) - start - max(found)
    return len(seen)


def _temperature(state: State, params: SamplingParams) -> None:
    t, reach = params.temperature, params.dynatemp_range
    count = len(state.ids)
    if reach > 0 and not params.mirostat:
        if count <= 1:
            return
        p = state.p()
        p = p[p > 0]
        entropy = -float((p * np.log(p)).sum())
        share = min(1.0, max(0.0, entropy / math.log(count)))
        low = max(0.0, t - reach)
        t = low + (t + reach - low) * share**params.dynatemp_exponent
    if t < COLD:
        state.keep(slice(1))
        return
    with np.errstate(over="ignore"):
        state.logits = np.maximum(state.logits / t, -1e300)
    state.shift = min(max(state.shift / t, -1e300), 1e300)


def _typical(state: State, params: SamplingParams) -> None:
    p = state.p()
    surprise = -np.log(p, where=p > 0, out=np.full_like(p, -np.inf))  # p = 0: infinite
    entropy = float((p * np.where(p > 0, surprise, 0)).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    count = max(_run(p[order], params.typical_p), params.min_keep)
    state.keep(np.sort(order[:count]))


def _xtc(state: State, place: int, chooser: ReferenceChooser) -> None:
    from gristmill.backends.reference.sampling import uniform

    params = chooser.params
    stream = chooser.chain[: place + 1].count("xtc")
    coin = uniform(chooser.seed, chooser.accepted, stream)
    if len(state.ids) < 2 or coin > params.xtc_probability:
        return
    p = state.p()
    drop = int(((p >= params.xtc_threshold) & (p > 0)).sum()) - 1
    if drop > 0 and len(state.ids) - drop >= params.min_keep:
        state.keep(slice(drop, None))


def _mirostat_count(logits: F64, chooser: ReferenceChooser) -> int:
    count = len(logits)
    if count < 2:
        return count
    ranks = np.arange(min(99, count - 1))
    steps = np.log((ranks + 2) / (ranks + 1))
    falls = logits[ranks] - logits[ranks + 1]
    s = float((steps * falls).sum() / (steps * steps).sum())
    if s == 0:
        return count
    with np.errstate(all="ignore"):
        excess = np.float64(s - 1)
        power = excess * np.exp2(chooser.mu) / (1 - np.float64(chooser.vocab) ** -excess)
        k = float(power ** np.float64(1 / s))
    if math.isnan(k):
        return 1
    return min(max(1, int(min(k, 1e9))), count)


def _adaptive(state: State, chooser: ReferenceChooser) -> None:
    target = chooser.params.adaptive_target
    if target < 0:
        return
    p = state.p()
    adapted = 2 * min(target, 1.0) - chooser.weighted / chooser.total
    d = np.abs(p - min(max(adapted, 0.0), 1.0)) / 0.3
    state.before, state.logits, state.shift = p, 5 - 10 * d * d / (1 + d), 0.0


def _run(p: F64, threshold: float) -> int:
    """Length of the shortest run from the start that sums to ``threshold`` or more."""
    return min(int(np.searchsorted(np.cumsum(p), threshold)) + 1, len(p))
