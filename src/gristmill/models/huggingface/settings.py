"""config.json's settings, checked, and what they are called in GGUF's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from gristmill.errors import FormatError, UnsupportedError

_MANY = 1 << 31


class Settings:
    """Typed access to a JSON object: a wrong kind is a FormatError that names file and key."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there with another value than null."""
        return self.values.get(key) is not None

    def section(self, key: str) -> Settings:
        """The object under ``key``; empty when there is none."""
        value = self.values.get(key)
        if value is None:
            return Settings({}, f"{self.where}: {key}")
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return Settings(cast("Mapping[str, object]", value), f"{self.where}: {key}")

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, at least 0."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MANY:
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list of numbers")
        items = cast("list[object]", value)
        return [Settings({key: item}, self.where).number(key) for item in items]

    def _wrong(self, key: str, value: object, allowed: str) -> FormatError:
        if value is None:
            return FormatError(f"{self.where} has no {key!r}, which must be {allowed}.")
        return FormatError(f"{self.where}: {key!r} is {value!r:.60}; it must be {allowed}.")


_ACTIVATIONS = {
    "gemma3": ("gelu_pytorch_tanh",),
}
_GATED = ("silu", "swish")


def metadata_of(architecture: str, config: Settings) -> dict[str, object]:
    """GGUF's metadata for a decoder. Raises FormatError, UnsupportedError."""
    heads = config.integer("num_attention_heads")
    width = config.integer("hidden_size")
    head_dim = config.integer("head_dim", width // heads if heads else 0)
    rotated = round(head_dim * config.number("partial_rotary_factor", 1.0))
    _check_activation(architecture, config)
    own: dict[str, object] = {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_position_embeddings", _context(architecture)),
        "embedding_length": width,
        "block_count": config.integer("num_hidden_layers"),
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.integer("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6),
        "rope.dimension_count": rotated,
    }
    windows = _gemma3(config) if architecture == "gemma3" else _windows(architecture, config)
    own |= windows
    made, tables = _rope(architecture, config, rotated)
    own |= made
    named: dict[str, object] = {f"{architecture}.{key}": value for key, value in own.items()}
    return {"general.architecture": architecture, **named, **tables}


def _context(architecture: str) -> int | None:
    return 131_072 if architecture == "gemma3" else None


def _check_activation(architecture: str, config: Settings) -> None:
    asked = config.text("hidden_activation", "") or config.text("hidden_act", "")
    allowed = _ACTIVATIONS.get(architecture, _GATED)
    if asked and asked not in allowed:
        raise UnsupportedError(
            f"config.json: the activation {asked!r:.60} is not served in {architecture} models; "
            f"{' or '.join(allowed)} is."
        )


def _windows(architecture: str, config: Settings) -> dict[str, object]:
    """A sliding window: Mistral's is every layer's, Qwen's is used only if it says so."""
    if architecture == "llama":
        window = config.integer("sliding_window", 0)
        return {"attention.sliding_window": window} if window else {}
    if config.flag("use_sliding_window", False) and config.integer("sliding_window", 0):
        raise UnsupportedError(
            f"config.json: {architecture} models with a sliding window "
            "('use_sliding_window') are not served."
        )
    return {}


_SLIDES = "sliding_attention"


def _gemma3(config: Settings) -> dict[str, object]:
    own: dict[str, object] = {
        "attention.sliding_window": config.integer("sliding_window", 4096),
        "attention.scale": config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "norm_plus": 1.0,
    }
    for key, name in (
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ):
        if config.has(key):
            own[name] = config.number(key)
    types = config.values.get("layer_types")
    if isinstance(types, list):
        kinds = cast("list[object]", types)
        unknown = [kind for kind in kinds if kind not in (_SLIDES, "full_attention")]
        if unknown:
            raise UnsupportedError(f"config.json: the layer type {unknown[0]!r:.60} is not served.")
        own["attention.sliding_window_pattern"] = [kind == _SLIDES for kind in kinds]
    else:
        own["attention.sliding_window_pattern"] = config.integer("sliding_window_pattern", 6)
    return own


# -------------------------------------------------------------------- RoPE


def _rope(
    architecture: str, config: Settings, rotated: int
) -> tuple[dict[str, object], dict[str, object]]:
    """Keys of the architecture, and tables that GGUF keeps as tensors.

    ``rope_parameters`` is how ``transformers`` 5 writes what were ``rope_theta`` and
    ``rope_scaling``; for layers of two kinds it holds an object for each.
    """
    base = config.number("rope_theta", 1e6 if architecture == "gemma3" else 1e4)
    local = config.number("rope_local_base_freq", 1e4)
    scaling = config.section("rope_scaling")
    given = config.section("rope_parameters")
    if given.has("full_attention"):
        local = given.section(_SLIDES).number("rope_theta", local)
        given = given.section("full_attention")
    if given.values:
        base, scaling = given.number("rope_theta", base), given
    own: dict[str, object] = {"rope.freq_base": base}
    if architecture == "gemma3":
        own["rope.freq_base_swa"] = local
    made, tables = _scaled(config, scaling, base, rotated)
    return own | made, tables


def _scaled(
    config: Settings, scaling: Settings, base: float, rotated: int
) -> tuple[dict[str, object], dict[str, object]]:
    kind = scaling.text("rope_type", "") or scaling.text("type", "default")
    original = scaling.integer(
        "original_max_position_embeddings",
        config.integer("original_max_position_embeddings", 0),
    )
    if kind in ("default", "mrope"):
        return {}, {}
    own: dict[str, object] = {}
    if original:
        own["rope.scaling.original_context_length"] = original
    if kind == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.number("factor")}, {}
    if kind == "llama3":
        return {}, {"rope_freqs.weight": llama3_factors(scaling, base, rotated)}
    if kind == "yarn":
        own |= {"rope.scaling.type": "yarn", "rope.scaling.factor": scaling.number("factor")}
        for key, name in (
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
            ("attention_factor", "yarn_attn_factor"),
        ):
            if scaling.has(key):
                own[f"rope.scaling.{name}"] = scaling.number(key)
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
