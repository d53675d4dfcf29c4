"""A model's metadata as GGUF has it: what the folder's words come to, or what the file had."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from gristmill.convert.recipes import Recipe
from gristmill.files.gguf import kept_metadata
from gristmill.files.gguf_write import Kept
from gristmill.text import exported
from gristmill.types import Checkpoint

_QUANTISATION_VERSION = 2
_OWN_KEYS = ("norm_plus", "attention.rope_pattern", "swiglu_limit", "rope.scaling.yarn_truncate")
"""Words of ours for what GGUF's tensors or the architecture's name say."""
_SPLIT = "split."


def metadata_of(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, object]:
    """Everything in the new file's head. Raises what reading the tokenizer raises."""
    if checkpoint.format == "gguf":
        kept: dict[str, object] = {
            key: Kept(data)
            for key, data in kept_metadata(checkpoint.path).items()
            if not key.startswith(_SPLIT)
        }
    else:
        kept = _of_folder(checkpoint)
    kept["general.quantization_version"] = _QUANTISATION_VERSION
    kept["general.file_type"] = recipe.file_type
    return kept


def _of_folder(checkpoint: Checkpoint) -> dict[str, object]:
    architecture = cast("str", checkpoint.metadata["general.architecture"])
    dropped = {f"{architecture}.{key}" for key in _OWN_KEYS}
    found: dict[str, object] = {"general.architecture": architecture, "general.type": "model"}
    for key, value in checkpoint.metadata.items():
        if not key.startswith("hf.") and key not in dropped:
            found[key] = value
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if found.get(f"{architecture}.{key}") == 0.0:
            del found[f"{architecture}.{key}"]
    _add_longrope(found, architecture)
    _add_special(checkpoint, found, architecture)
    settings = {
        key.removeprefix("hf."): cast("Mapping[str, object]", value)
        for key, value in checkpoint.metadata.items()
        if key.startswith("hf.") and isinstance(value, Mapping)
    }
    size = checkpoint.tensors["token_embd.weight"].shape[0]
    found[f"{architecture}.vocab_size"] = size
    kind = "gemma4" if architecture == "gemma4" else None
    return found | exported.describe(checkpoint.path, settings, size, kind)


def _add_longrope(found: dict[str, object], architecture: str) -> None:
    """The factor of attention that goes with LongRoPE's tables."""
    scaling = f"{architecture}.rope.scaling"
    original = found.get(f"{scaling}.original_context_length")
    context = found.get(f"{architecture}.context_length")
    if (
        found.get(f"{scaling}.type") == "longrope"
        and f"{scaling}.attn_factor" not in found
        and isinstance(original, int)
        and isinstance(context, int)
    ):
        growth = context / max(original, 1)
        factor = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0
        found[f"{scaling}.attn_factor"] = factor


def _add_special(checkpoint: Checkpoint, found: dict[str, object], architecture: str) -> None:
    """What llama.cpp wants to know of some architectures."""
    if architecture == "stablelm":
        parallel = "blk.0.ffn_norm.weight" not in checkpoint.tensors
        found["stablelm.use_parallel_residual"] = parallel
    if architecture in ("qwen2vl", "qwen3vl"):
        found[f"{architecture}.rope.dimension_sections"] = _sections(checkpoint)
    if architecture == "qwen3vl":
        found["qwen3vl.n_deepstack_layers"] = 0


def _sections(checkpoint: Checkpoint) -> list[int]:
    """How many rotated pairs follow time, height and width: four numbers."""
    config = cast("Mapping[str, object]", checkpoint.metadata["hf.config"])
    config = cast("Mapping[str, object]", config.get("text_config") or config)
    for key in ("rope_parameters", "rope_scaling"):
        rope = cast("Mapping[str, object]", config.get(key) or {})
        given = rope.get("mrope_section")
        if isinstance(given, list):
            numbers = [int(n) for n in cast("list[int]", given)]
            return (numbers + [0, 0, 0, 0])[:4]
    return [0, 0, 0, 0]
