"""Which sampling steps an answer takes, and in which order.

The steps have llama-server's names. There are two orders: vLLM's, which sets the temperature
before anything is cut off, and llama-server's, which sets it last. An answer goes by vLLM's,
unless it asks for something that only llama-server has and whose result depends on the order
(XTC, dynamic temperature, adaptive-p), or names its ``samplers`` itself.
"""

from __future__ import annotations

from itertools import pairwise

from gristmill.types import SamplingParams

STEPS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "temperature",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "mirostat_1",
    "mirostat_2",
    "adaptive_p",
)
"""All steps, in vLLM's order where it has them. The native sampler numbers them like this."""

LLAMA_SERVER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

COLD = 1e-30
"""A temperature below this is 0: logits divided by it would not be numbers."""


def steps(params: SamplingParams) -> tuple[str, ...]:
    """The steps that change anything, in order. Mirostat has none beside it but temperature."""
    if params.mirostat:
        return ("temperature", f"mirostat_{params.mirostat}")
    if params.samplers is not None:
        order = params.samplers
    elif params.xtc_probability > 0 or params.dynatemp_range > 0 or params.adaptive_target >= 0:
        order = (*LLAMA_SERVER, "adaptive_p") if params.adaptive_target >= 0 else LLAMA_SERVER
    else:
        order = STEPS[: STEPS.index("xtc")]
    on = {name: _on(name, params) for name in set(order)}
    chosen = [name for name in order if on[name] and name != "adaptive_p"]
    return (*chosen, "adaptive_p") if on.get("adaptive_p") else tuple(chosen)


def is_plain(chain: tuple[str, ...], params: SamplingParams) -> bool:
    """Whether the steps are some of vLLM's, each once and in its order."""
    places = [STEPS.index(name) for name in chain]
    if any(after <= before for before, after in pairwise(places)):
        return False
    special = {"top_n_sigma", *STEPS[STEPS.index("xtc") :]}
    return params.min_keep <= 1 and params.dynatemp_range <= 0 and special.isdisjoint(chain)


def _on(name: str, params: SamplingParams) -> bool:
    if name == "penalties":
        return params.repeat_last_n != 0 and (
            params.repetition_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )
    if name == "dry":
        return (
            params.dry_multiplier != 0 and params.dry_base >= 1 and params.dry_penalty_last_n != 0
        )
    if name == "xtc":
        return params.xtc_probability > 0 and params.xtc_threshold <= 0.5
    if name == "temperature":
        return params.temperature != 1 or params.dynatemp_range > 0
    return {
        "top_n_sigma": params.top_n_sigma > 0,
        "top_k": params.top_k > 0,
        "typ_p": params.typical_p < 1,
        "top_p": params.top_p < 1,
        "min_p": params.min_p > 0,
        "adaptive_p": True,
    }[name]
