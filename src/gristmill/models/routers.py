"""How a model's experts are chosen, read from its metadata and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gristmill.backends.ops import Gate, Routing
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.metadata import Metadata

_MANY = 1 << 16


@dataclass(frozen=True)
class Router:
    """What an architecture's files do not say."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    gate: Gate = "silu"
    shares_hidden: bool = False
    """Whether ``feed_forward_length`` is that of all experts a token uses, where the experts'
    own is not said."""
    always: bool = True
    """Whether no model of the architecture is without experts."""


ROUTERS: Mapping[str, Router] = {
    "gpt-oss": Router(gate="clamped"),
    "granitehybrid": Router(always=False),
    "granitemoe": Router(),
    "llama": Router(always=False),
    "olmoe": Router(normalised=False),
    "qwen2moe": Router(normalised=False, shares_hidden=True),
    "qwen35moe": Router(),
    "qwen3next": Router(),
    "qwen3moe": Router(shares_hidden=True),
}
"""Every architecture with experts."""

_SCORES: Mapping[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}


@dataclass(frozen=True)
class Mixture:
    """The experts of a model. ``hidden``, ``shared``: widths between the halves of an expert, and
    of what all tokens share (0: nothing)."""

    routing: Routing
    hidden: int
    shared: int
    gate: Gate
    limit: float
    first: int
    """Layers before it are dense."""


def read_mixture(meta: Metadata, hidden: int, layers: int) -> Mixture | None:
    """The model's experts; None if it has none.

    Raises FormatError for numbers that cannot be, UnsupportedError for an architecture whose
    experts are not served.
    """
    router = ROUTERS.get(meta.architecture)
    always = router is not None and router.always
    count = meta.integer("expert_count", int(always), _MANY, None if always else 0)
    if count == 0:
        return None
    if router is None:
        raise UnsupportedError(
            f"This {meta.architecture} model is a mixture of experts, which is not served."
        )
    used = meta.integer("expert_used_count", 1, count)
    usual = hidden // used if router.shares_hidden else hidden
    own = meta.integer("expert_feed_forward_length", 0, 1 << 24, 0) or usual
    shared = own * meta.integer("expert_shared_count", 0, _MANY, 0)
    return Mixture(
        _routing(meta, router, count, used),
        hidden=own,
        shared=meta.integer("expert_shared_feed_forward_length", 0, 1 << 24, 0) or shared,
        gate=router.gate,
        limit=meta.number("swiglu_limit", 1e-3, 1e6, 7.0),
        first=meta.integer("leading_dense_block_count", 0, layers, 0),
    )


def _routing(meta: Metadata, router: Router, count: int, used: int) -> Routing:
    key = "expert_gating_func"
    score = _SCORES.get(meta.integer(key, 0, 16, 0), None) if meta.has(key) else router.score
    if score is None:
        raise UnsupportedError(
            f"{meta.name(key)!r} is {meta.integer(key, 0, 16)}: of the ways to score experts "
            "1 (softmax) and 2 (sigmoid) are served."
        )
    groups = meta.integer("expert_group_count", 0, count, 1) or 1
    groups_used = meta.integer("expert_group_used_count", 0, groups, groups) or groups
    if count % groups or used > groups_used * (count // groups):
        raise FormatError(
            f"{used} of {count} experts cannot be chosen from {groups_used} of {groups} groups "
            f"({meta.name('expert_group_count')!r})."
        )
    best = min(2, count // groups) if score == "sigmoid" else 1
    scale = meta.number("expert_weights_scale", 0.0, 1e6, 0.0) or 1.0
    normalised = meta.flag("expert_weights_norm", router.normalised)
    return Routing(count, used, score, normalised, scale, groups, groups_used, best)
