"""RoPE as config.json says it, in GGUF's words."""

from __future__ import annotations

import math

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.huggingface.settings import Settings

Own = dict[str, object]
"""Keys of one architecture, without its name."""


def partial(config: Settings, default: float) -> float:
    """The share of a head's features that is rotated."""
    given = config.section("rope_parameters")
    if given.has("full_attention"):
        given = given.section("full_attention")
    if given.text("rope_type", "") == "proportional":
        return 1.0  # the others are rotated by nothing
    return given.number("partial_rotary_factor", config.number("partial_rotary_factor", default))


def rope_of(
    config: Settings, rotated: int, base: float, local: float | None
) -> tuple[Own, dict[str, object]]:
    """Keys of the architecture, and tables that GGUF keeps as tensors.

    ``base`` and ``local`` are what the architecture has where the config says nothing: of all
    layers, and of sliding ones where they have their own. ``rope_parameters`` is how
    ``transformers`` 5 writes what were ``rope_theta`` and ``rope_scaling``; for layers of two
    kinds it holds an object for each.
    """
    base = config.number("rope_theta", base)
    if local is not None:
        local = config.number("rope_local_base_freq", local)
    scaling = config.section("rope_scaling")
    given = config.section("rope_parameters")
    if given.has("full_attention"):
        other = given.section("sliding_attention").number("rope_theta", local or base)
        local = local if local is None else other
        given = given.section("full_attention")
    if given.values:
        base, scaling = given.number("rope_theta", base), given
    own: Own = {"rope.freq_base": base}
    if local:
        own["rope.freq_base_swa"] = local
    made, tables = _scaled(config, scaling, base, rotated)
    return own | made, tables


def _scaled(
    config: Settings, scaling: Settings, base: float, rotated: int
) -> tuple[Own, dict[str, object]]:
    kind = scaling.text("rope_type", "") or scaling.text("type", "default")
    original = scaling.integer(
        "original_max_position_embeddings",
        config.integer("original_max_position_embeddings", 0),
    )
    if kind in ("default", "mrope"):
        return {}, {}
    if kind == "dynamic" and scaling.has("alpha"):  # Hunyuan's: a base of its own
        grown = base * scaling.number("alpha") ** (rotated / max(rotated - 2, 1))
        return {"rope.freq_base": grown}, {}
    own: Own = {}
    if original:
        own["rope.scaling.original_context_length"] = original
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.number("factor")}, {}
    if kind == "llama3":
        return {}, {"rope_freqs.weight": llama3_factors(scaling, base, rotated)}
    if kind == "proportional":
        turning = int(scaling.number("partial_rotary_factor", 1.0) * rotated / 2)
        still = [1e30] * (rotated // 2 - turning)
        return {}, {"rope_freqs.weight": [1.0] * turning + still}
    if kind == "yarn":
        own |= {"rope.scaling.type": "yarn", "rope.scaling.factor": scaling.number("factor")}
        for key, name in (
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
            ("attention_factor", "yarn_attn_factor"),
        ):
            if scaling.has(key):
                own[f"rope.scaling.{name}"] = scaling.number(key)
        if scaling.has("truncate"):
            own["rope.scaling.yarn_truncate"] = scaling.flag("truncate", True)
        if not scaling.has("attention_factor") and scaling.has("mscale_all_dim"):
            own["rope.scaling.yarn_log_multiplier"] = scaling.number("mscale_all_dim")
            if scaling.number("mscale", 1.0) != 1.0:
                raise UnsupportedError(f"{scaling.where}: an 'mscale' other than 1 is not served.")
        if scaling.has("llama_4_scaling_beta"):
            own["attention.temperature_scale"] = scaling.number("llama_4_scaling_beta")
        return own, {}
    if kind in ("longrope", "su"):
        own["rope.scaling.type"] = "longrope"
        if scaling.has("attention_factor"):
            own["rope.scaling.attn_factor"] = scaling.number("attention_factor")
        return own, {
            "rope_factors_long.weight": scaling.numbers("long_factor"),
            "rope_factors_short.weight": scaling.numbers("short_factor"),
        }
    raise UnsupportedError(
        f"config.json: RoPE scaling {kind!r:.60} is not served; default, linear, llama3, yarn "
        "and longrope are."
    )


def llama3_factors(scaling: Settings, base: float, rotated: int) -> list[float]:
    """The divisor of each pair's frequency: 1 for fast ones, ``factor`` for slow ones, and a
    blend between (Llama 3.1's model card and ``transformers``' "llama3")."""
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor", 1.0), scaling.number("high_freq_factor", 4.0)
    original = scaling.integer("original_max_position_embeddings", 8192)
    if not (factor > 0 and 0 < low < high and original > 0):
        raise FormatError(f"{scaling.where} has llama3 factors that cannot be.")
    factors: list[float] = []
    for i in range(rotated // 2):
        turns = original / (2 * math.pi * base ** (2 * i / rotated))
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            kept = (turns - low) / (high - low)
            factors.append(1.0 / ((1.0 - kept) / factor + kept))
    return factors
