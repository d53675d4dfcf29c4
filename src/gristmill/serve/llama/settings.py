"""``generation_settings``: every sampling value as it was used, by llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.backends.chain import LLAMA_SERVER
from gristmill.serve.llama.request import DEFAULTS, RANDOM_SEED, NativeFields
from gristmill.serve.protocol import Served
from gristmill.serve.sampling_fields import BREAKERS
from gristmill.types import SamplingParams


def sampling_settings(params: SamplingParams) -> dict[str, object]:
    """What ``SamplingParams`` say."""
    limit = -1 if params.max_tokens is None else params.max_tokens
    return {
        "seed": RANDOM_SEED if params.seed is None else params.seed,
        "temperature": params.temperature,
        "dynatemp_range": params.dynatemp_range,
        "dynatemp_exponent": params.dynatemp_exponent,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "top_n_sigma": params.top_n_sigma if params.top_n_sigma > 0 else -1.0,
        "xtc_probability": params.xtc_probability,
        "xtc_threshold": params.xtc_threshold,
        "typical_p": params.typical_p,
        "repeat_last_n": params.repeat_last_n,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "dry_multiplier": params.dry_multiplier,
        "dry_base": params.dry_base,
        "dry_allowed_length": params.dry_allowed_length,
        "dry_penalty_last_n": params.dry_penalty_last_n,
        "mirostat": params.mirostat,
        "mirostat_tau": params.mirostat_tau,
        "mirostat_eta": params.mirostat_eta,
        "adaptive_target": params.adaptive_target,
        "adaptive_decay": params.adaptive_decay,
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs or 0,
        "min_keep": params.min_keep,
        "samplers": list(LLAMA_SERVER if params.samplers is None else params.samplers),
        "post_sampling_probs": params.post_sampling,
        "n_keep": 0,
        "n_discard": 0,
        "stream": False,
        "timings_per_token": False,
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "speculative.types": "none",
        "backend_sampling": False,
        "lora": [],
    }


def generation_settings(
    params: SamplingParams, fields: NativeFields, body: Mapping[str, object]
) -> dict[str, object]:
    """The same, and what only the body says."""
    schema = body.get("json_schema") is not None and body.get("grammar") is None
    return {
        **sampling_settings(params),
        "dry_sequence_breakers": list(fields.dry_sequence_breakers or BREAKERS),
        "stop": list(params.stop),
        "n_keep": fields.n_keep,
        "n_discard": fields.n_discard,
        "stream": fields.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in params.logit_bias],
        "grammar": body.get("grammar") or "",
        **({"json_schema": body["json_schema"]} if schema else {}),
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "timings_per_token": fields.timings_per_token,
    }


def default_settings(served: Served) -> dict[str, object]:
    """What a body without any field comes to."""
    values: dict[str, float | int] = {**DEFAULTS, **served.defaults}
    names = SamplingParams.__dataclass_fields__
    known = {name: value for name, value in values.items() if name in names}
    return sampling_settings(SamplingParams(**known))  # pyright: ignore[reportArgumentType]
