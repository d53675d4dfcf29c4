"""Hugging Face folders, told in the words of GGUF: one set of names for the models to read.

``understand`` turns a folder's checkpoint into one whose metadata and tensors are named as in
a GGUF file. Tensors stay where they are mapped; a few small ones (RoPE's factors) are made
from the config, as GGUF's converters do.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.huggingface.hybrids import decay_rates
from gristmill.models.huggingface.names import rename
from gristmill.models.huggingface.quantised import combine
from gristmill.models.huggingface.settings import Settings
from gristmill.models.huggingface.shapes import metadata_of
from gristmill.types import Checkpoint, RawTensor

__all__ = ["MODEL_TYPES", "understand"]

MODEL_TYPES: Mapping[str, str] = {
    "arcee": "arcee",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "ernie4_5": "ernie4_5",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4v": "glm4",
    "glm4v_text": "glm4",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "internlm3": "llama",
    "jais2": "jais2",
    "lfm2": "lfm2",
    "llama": "llama",
    "minicpm": "minicpm",
    "ministral": "llama",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mistral3": "mistral3",
    "mixtral": "llama",
    "nemotron": "nemotron",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2_5_vl": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl",
    "qwen2_moe": "qwen2moe",
    "qwen2_vl": "qwen2vl",
    "qwen2_vl_text": "qwen2vl",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_text": "qwen3vl",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
"""``model_type`` of a config.json → GGUF's name of the architecture."""

_TIED_BY_DEFAULT = frozenset(
    {
        "cohere2",
        "command-r",
        "ernie4_5",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma4",
        "lfm2",
        "smollm3",
        "starcoder2",
    }
)


def understand(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint in GGUF's words; one from a GGUF file is returned as it is.

    Raises UnsupportedError for an architecture or feature that is not served, FormatError for
    a config that cannot be or disagrees with the tensors.
    """
    if checkpoint.format != "hf" or "general.architecture" in checkpoint.metadata:
        return checkpoint
    config = Settings(_mapping(checkpoint, "hf.config"), "config.json")
    kind = _model_type(config)
    text = config.section("text_config") if config.has("text_config") else config
    architecture = MODEL_TYPES[kind]
    metadata = metadata_of(architecture, text)
    metadata["general.name"] = _name(checkpoint.path)
    tensors = _tensors(checkpoint, combine(config, checkpoint), architecture, text)
    for name, values in config_tensors(metadata):
        data = array("f", values)
        tensors[name] = RawTensor(name, "f32", (len(data),), memoryview(data).cast("B"))
    _add_texts(checkpoint, metadata)
    return replace(
        checkpoint,
        metadata={**checkpoint.metadata, **metadata},
        tensors=tensors,
        release=_release(checkpoint),
    )


def config_tensors(metadata: dict[str, object]) -> list[tuple[str, list[float]]]:
    """Takes the tables that GGUF keeps as tensors out of the metadata."""
    names = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
    return [(n, cast("list[float]", metadata.pop(n))) for n in names if n in metadata]


def _model_type(config: Settings) -> str:
    kind = config.text("model_type", "")
    if kind in MODEL_TYPES:
        return kind
    if config.has("auto_map"):
        raise UnsupportedError(
            f"This model ({kind or 'of no known type'}) needs Python code that comes with it "
            "('auto_map' in config.json); code from a model is never run."
        )
    raise UnsupportedError(
        f"config.json says model_type {kind!r:.60}, which is not served; served are "
        f"{', '.join(sorted(MODEL_TYPES))}."
    )


def _tensors(
    checkpoint: Checkpoint,
    tensors: Mapping[str, RawTensor],
    architecture: str,
    config: Settings,
) -> dict[str, RawTensor]:
    """The tensors under GGUF's names. A tied head that was stored twice is left out."""
    tied = config.flag("tie_word_embeddings", architecture in _TIED_BY_DEFAULT)
    found: dict[str, RawTensor] = {}
    for name, tensor in tensors.items():
        known = rename(name, architecture)
        if known is None or (tied and known.startswith("output.")):
            continue
        if known in found:
            raise FormatError(
                f"{checkpoint.path}: {name!r:.100} and {found[known].name!r:.100} are the same "
                f"tensor ({known!r})."
            )
        found[known] = tensor
    decay_rates(found)
    if not tied and "output.weight" not in found and "token_embd.weight" in found:
        raise FormatError(
            f"{checkpoint.path} has no 'lm_head.weight', though config.json does not tie it to "
            "the embedding ('tie_word_embeddings')."
        )
    return found


def _release(checkpoint: Checkpoint) -> Callable[[RawTensor], None]:
    """Made tensors have no pages to give back; of a composite those of all its parts go."""
    mapped = {name: t.data for name, t in checkpoint.tensors.items()}

    def release(tensor: RawTensor) -> None:
        if mapped.get(tensor.name) is tensor.data:
            checkpoint.release(tensor)
        for part in tensor.parts.values():
            release(part)

    return release


def _name(path: Path) -> str:
    return path.resolve().name


def _mapping(checkpoint: Checkpoint, key: str) -> Mapping[str, object]:
    value = checkpoint.metadata.get(key)
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def _add_texts(checkpoint: Checkpoint, metadata: dict[str, object]) -> None:
    """Chat templates, and what generation_config.json suggests."""
    for name, template in _mapping(checkpoint, "hf.chat_templates").items():
        suffix = "" if name == "default" else f".{name}"
        metadata[f"tokenizer.chat_template{suffix}"] = template
    generation = _mapping(checkpoint, "hf.generation_config")
    if generation.get("do_sample") is not False:
        for name, key in _SAMPLING.items():
            value = generation.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                metadata[f"general.sampling.{key}"] = value
