"""A mixture of experts, row by row, in float64: which experts, what they make, their sum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.backends.ops import Gate, Routing
from gristmill.backends.reference.activations import act
from gristmill.backends.reference.state import F64


def route(logits: F64, routing: Routing, selection: F64 | None, result_scale: F64 | None) -> F64:
    """What each expert weighs in each row, [rows, experts]: 0 for those not chosen."""
    if routing.score == "softmax":
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
    else:
        scores = act(logits, "sigmoid")
    wish = scores if selection is None else scores + selection
    if routing.groups > 1:
        wish = np.where(_in_best_groups(wish, routing), wish, -np.inf)
    chosen = np.argsort(-wish, axis=-1, kind="stable")[:, : routing.used]
    weights = np.take_along_axis(scores, chosen, -1)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    result = np.zeros_like(scores)
    np.put_along_axis(result, chosen, weights * routing.scale, -1)
    return result if result_scale is None else result * result_scale


def _in_best_groups(wish: F64, routing: Routing) -> npt.NDArray[np.bool_]:
    """[rows, experts]: whether an expert's group is one of the best."""
    rows, experts = wish.shape
    grouped = wish.reshape(rows, routing.groups, -1)
    best = np.sort(grouped, -1)[:, :, -routing.group_best :].sum(-1)
    order = np.argsort(-best, axis=-1, kind="stable")[:, : routing.groups_used]
    kept = np.zeros(best.shape, bool)
    np.put_along_axis(kept, order, True, -1)
    return np.repeat(kept, experts // routing.groups, axis=-1)


def mixture(
    x: F64,
    weights: F64,
    routing: Routing,
    matrices: tuple[F64, F64],
    biases: tuple[F64 | None, F64 | None],
    gate: Gate,
    limit: float,
) -> F64:
    """The weighted sum of the experts' results, [rows, width].

    weights [rows, experts]; matrices (E, 2h, d) and (E, d, h); biases of all experts in a row.
    """
    gate_up, down = matrices
    result = np.zeros((len(x), down.shape[1]))
    for expert in range(routing.experts):
        rows = np.flatnonzero(weights[:, expert])
        if not len(rows):
            continue
        weight = weights[rows, expert][:, None]
        read = x[rows] * weight if routing.weighs_input else x[rows]
        y = _biased(read @ gate_up[expert].T, biases[0], expert)
        half = y.shape[1] // 2
        y = _gated(y[:, :half], y[:, half:], gate, limit)
        y = _biased(y @ down[expert].T, biases[1], expert)
        result[rows] += y if routing.weighs_input else y * weight
    return result


def _biased(y: F64, bias: F64 | None, expert: int) -> F64:
    n = y.shape[1]
    return y if bias is None else y + bias[expert * n : (expert + 1) * n]


def _gated(gate: F64, up: F64, kind: Gate, limit: float) -> F64:
    if kind != "clamped":
        return act(gate, kind) * up
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (up + 1) * gate * act(1.702 * gate, "sigmoid")
