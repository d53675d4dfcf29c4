"""The shape of a model as config.json says it, in the words of GGUF's metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.families import FAMILIES, Family
from gristmill.models.huggingface.hybrids import granitehybrid, lfm2, qwen35
from gristmill.models.huggingface.mixtures import mixture_of
from gristmill.models.huggingface.scalings import Own, partial, rope_of
from gristmill.models.huggingface.settings import Settings
from gristmill.models.routers import ROUTERS

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
    "gelu": ("gelu",),
    "relu": ("relu",),
    "relu2": ("relu2",),
}
_SLIDES = "sliding_attention"
_PARTIAL = {
    **dict.fromkeys(("glm4", "chatglm", "nemotron", "phi2"), 0.5),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next", "stablelm"), 0.25),
}
_BASES = {
    **dict.fromkeys(("gemma3", "gemma4", "lfm2"), 1e6),
    **dict.fromkeys(("command-r", "ernie4_5", "exaone"), 5e5),
}
_CONTEXTS = {"gemma3": 131_072, "gemma4": 131_072}
_WINDOWS = {"gemma4": 512, "gemma3": 4096, "gemma2": 4096, "cohere2": 4096}
_EPS = {"starcoder2": "norm_epsilon", "nemotron": "norm_eps"}
"""Where the config's words or ``transformers``' defaults are not those of most."""


def metadata_of(architecture: str, config: Settings) -> dict[str, object]:
    """GGUF's metadata for a dense decoder. Raises FormatError, UnsupportedError."""
    family = FAMILIES[architecture]
    heads = config.integer("num_attention_heads")
    width = config.integer("hidden_size")
    head_dim = config.integer("head_dim", width // heads if heads else 0)
    if architecture == "gemma4":
        head_dim = _of_full_layers(config, "global_head_dim", "head_dim", 512)
    rotated = int(head_dim * partial(config, _PARTIAL.get(architecture, 1.0)))
    _check_activation(architecture, family, config)
    own: Own = {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_position_embeddings", _CONTEXTS.get(architecture)),
        "embedding_length": width,
        "block_count": config.integer(_spelled(config, "num_hidden_layers", "num_layers")),
        "feed_forward_length": config.integer(
            _spelled(config, "intermediate_size", "moe_intermediate_size")
        ),
        "attention.head_count": heads,
        "attention.head_count_kv": config.integer("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": rotated,
    }
    if family.norm == "rms":
        own["attention.layer_norm_rms_epsilon"] = config.number(
            _spelled(config, "rms_norm_eps", "layer_norm_epsilon"), 1e-6
        )
    else:
        eps = config.number(_EPS.get(architecture, "layer_norm_eps"), 1e-5)
        own["attention.layer_norm_epsilon"] = eps
    own |= _windows(architecture, family, config)
    if architecture in ROUTERS:
        own |= mixture_of(architecture, config)
    if architecture in _OWN:
        own |= _OWN[architecture](config)
    base = _BASES.get(architecture, 1e4)
    local = 1e4 if architecture == "gemma4" else family.local_base
    made, tables = rope_of(config, rotated, base, local)
    own |= made
    named: dict[str, object] = {f"{architecture}.{key}": value for key, value in own.items()}
    return {"general.architecture": architecture, **named, **tables}


def _spelled(config: Settings, usual: str, other: str) -> str:
    """The key, of two, that the config has."""
    return other if config.has(other) and not config.has(usual) else usual


def _check_activation(architecture: str, family: Family, config: Settings) -> None:
    asked = config.text("hidden_activation", "") or config.text("hidden_act", "")
    asked = asked or config.text("activation_function", "")
    allowed = _ACTIVATIONS[family.activation]
    if architecture == "gemma":  # "gelu" there means the other: transformers corrects it too
        allowed = (*allowed, "gelu")
    if asked and asked not in allowed:
        raise UnsupportedError(
            f"config.json: the activation {asked!r:.60} is not served in {architecture} models; "
            f"{' or '.join(allowed)} is."
        )


# ----------------------------------------------------------------- windows


def _windows(architecture: str, family: Family, config: Settings) -> Own:
    """The sliding window and the layers it is for."""
    window = config.integer("sliding_window", _WINDOWS.get(architecture, 0))
    if not window or not config.flag("use_sliding_window", True):
        return {}
    if family.period is None:
        if config.flag("use_sliding_window", False):
            raise UnsupportedError(
                f"config.json: {architecture} models with a sliding window "
                "('use_sliding_window') are not served."
            )
        return {}
    own: Own = {"attention.sliding_window": window}
    layers = config.integer("num_hidden_layers")
    pattern = _pattern(config, layers)
    if pattern is not None:
        own["attention.sliding_window_pattern"] = pattern
    return own


def _pattern(config: Settings, layers: int) -> list[bool] | int | None:
    """A flag for every layer, all but each n-th, or None: what is usual."""
    types = config.values.get("layer_types")
    if isinstance(types, list):
        kinds = cast("list[object]", types)
        unknown = [kind for kind in kinds if kind not in (_SLIDES, "full_attention")]
        if unknown:
            raise UnsupportedError(f"config.json: the layer type {unknown[0]!r:.60} is not served.")
        return [kind == _SLIDES for kind in kinds]
    given = config.values.get("sliding_window_pattern")
    if isinstance(given, str) and given:  # "LLLG": L slides, G sees all
        return [given[i % len(given)] == "L" for i in range(layers)]
    return config.integer("sliding_window_pattern") if given is not None else None


# ------------------------------------------------------------ what is special


def _gemma2(config: Settings) -> Own:
    own: Own = {
        "attention.scale": config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        "norm_plus": 1.0,
    }
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        own[key] = config.number(key, 0.0)
    return own


def _of_full_layers(config: Settings, top: str, key: str, default: int) -> int:
    """A number that layers without a window have of their own, in one of two spellings."""
    if config.has(top):
        return config.integer(top)
    each = config.section("per_layer_config")
    found = [each.section(layer).integer(key, default) for layer in each.values]
    if any(value != found[0] for value in found):
        raise UnsupportedError(f"{each.where}: {key!r} differs between layers.")
    return found[0] if found else default


def _gemma4(config: Settings) -> Own:
    if config.flag("enable_moe_block", False):
        raise UnsupportedError("config.json: gemma4 models with experts are not served.")
    if config.text("use_bidirectional_attention", "vision") == "all":
        raise UnsupportedError("config.json: bidirectional attention to all is not served.")
    layers, shared = config.integer("num_hidden_layers"), config.integer("num_kv_shared_layers", 0)
    hidden, size = config.integer("intermediate_size"), config.integer("head_dim", 256)
    kv_heads = config.integer("num_key_value_heads", 4)
    wide = config.flag("use_double_wide_mlp", False)
    pattern = _pattern(config, layers)
    if pattern is None or isinstance(pattern, int):
        period = pattern or 6
        pattern = [i % period != period - 1 for i in range(layers)]
    full = _of_full_layers(config, "num_global_key_value_heads", "num_key_value_heads", kv_heads)
    own: Own = {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config.integer("hidden_size_per_layer_input", 256),
        "feed_forward_length": [
            hidden * (2 if wide and i >= layers - shared else 1) for i in range(layers)
        ],
        "attention.head_count_kv": [kv_heads if slides else full for slides in pattern],
        "attention.key_length_swa": size,
        "attention.value_length_swa": size,
        "rope.dimension_count_swa": size,
    }
    if config.has("final_logit_softcapping"):
        own["final_logit_softcapping"] = config.number("final_logit_softcapping")
    return own


def _granite(config: Settings) -> Own:
    return {
        "attention.scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logit_scale": config.number("logits_scaling", 1.0),
    }


def _minicpm(config: Settings) -> Own:
    layers = max(config.integer("num_hidden_layers"), 1)
    return {
        "embedding_scale": config.number("scale_emb", 1.0),
        "residual_scale": config.number("scale_depth", layers**0.5) / layers**0.5,
        "logit_scale": config.integer("hidden_size") / max(config.integer("dim_model_base", 1), 1),
    }


def _smollm3(config: Settings) -> Own:
    flags = config.values.get("no_rope_layers")
    if flags is None:
        return {}
    if not isinstance(flags, list) or not all(flag in (0, 1) for flag in cast("list[int]", flags)):
        raise FormatError(
            f"config.json: 'no_rope_layers' is {flags!r:.60}; it must be a list of 0 and 1."
        )
    return {"attention.rope_pattern": [bool(flag) for flag in cast("list[int]", flags)]}


def _cohere(config: Settings) -> Own:
    return {"logit_scale": config.number("logit_scale", 0.0625)}


_OWN: Mapping[str, Callable[[Settings], Own]] = {
    "cohere2": _cohere,
    "command-r": _cohere,
    "gemma": lambda config: {"norm_plus": 1.0},
    "gemma2": _gemma2,
    "gemma3": _gemma2,
    "gemma4": _gemma4,
    "granite": _granite,
    "granitehybrid": lambda config: _granite(config) | granitehybrid(config),
    "granitemoe": _granite,
    "lfm2": lfm2,
    "minicpm": _minicpm,
    "nemotron": lambda config: {"norm_plus": 1.0},
    "qwen35": qwen35,
    "qwen35moe": qwen35,
    "qwen3next": qwen35,
    "smollm3": _smollm3,
}
"""Settings that one architecture has and most have not."""
