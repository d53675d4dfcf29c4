"""The activations by name, elementwise, in float64."""

from __future__ import annotations

import math

import numpy as np

from gristmill.backends.reference.state import F64

_erf = np.vectorize(math.erf, otypes=[np.float64])


def act(x: F64, kind: str) -> F64:
    """The activations by name, elementwise."""
    if kind == "silu":
        return x / (1 + np.exp(-np.clip(x, -700, None)))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "gelu":
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "relu2":
        return np.maximum(x, 0) ** 2
    if kind == "sigmoid":
        return 1 / (1 + np.exp(-np.clip(x, -700, None)))
    if kind == "softplus":
        return np.logaddexp(0, x)
    raise ValueError(f"unknown activation {kind!r}")
