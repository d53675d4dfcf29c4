"""What tells one architecture of dense decoders from another: one row each.

Names are GGUF's ``general.architecture``. What a file itself says (biases, fused q, k and v,
norms of some sizes only) is read from its tensors; here is what it does not say. Rotation
styles and names of tensors are llama.cpp's; the rest was learnt from ``transformers`` 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gristmill.models.rope import Style

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2"]


@dataclass(frozen=True)
class Family:
    """The shape that all models of an architecture share."""

    style: Style = "half"
    halves: bool = False
    """Whether a Hugging Face folder has the rows of q and k in halves though GGUF has pairs."""
    norm: Literal["rms", "layer"] = "rms"
    pre_norm: bool = True
    """Whether attention and feed-forward read normed activations."""
    post_norm: bool = False
    """Whether what they add is normed."""
    qk_norm: Literal["", "head", "whole", "each"] = ""
    """RMS norm of q and k: one for every head, one over all; "each": layer norm, a weight for
    each head, in those files that have it."""
    qk_norm_late: bool = False
    """Whether q and k are normed after they were rotated."""
    activation: Activation = "silu"
    gated: bool = True
    fused: bool = False
    """Whether "ffn_up" holds the gate's rows before its own."""
    parallel: Literal["", "always", "unnormed"] = ""
    """Whether both halves of a layer read the same normed activations; "unnormed": in those
    files that have no norm for the feed-forward."""
    ffn_norm: str = "ffn_norm"
    """The name of the norm before the feed-forward."""
    period: int | None = None
    """With a sliding window every n-th layer sees all and the others slide (0: all slide);
    None: no windows are known, and a file with one is refused."""
    window: int = 0
    """The window where the file says none."""
    local_base: float | None = None
    """If given, sliding layers rotate without the model's scaling, by ``rope.freq_base_swa`` or
    this base (0: that of the others)."""
    unrotated: Literal["", "full", "fourth"] = ""
    """Layers without RoPE: those that see all beside sliding ones, or every fourth."""
    softcaps: tuple[float, float] = (0.0, 0.0)
    """Of scores and of logits, where the file says none; 0 is none."""
    width_scaled: int = 0
    """The size, by its layers, that scales queries by width/heads rather than head_dim."""
    root_scaled: bool = False
    """Whether embeddings are multiplied by the root of the width."""
    logits: Literal["", "divided", "multiplied"] = ""
    """What ``logit_scale`` does."""
    tempered: bool = False
    """Whether q grows with the position, beyond the context first trained on."""


FAMILIES: Mapping[str, Family] = {
    "arcee": Family("pairs", halves=True, activation="relu2", gated=False),
    "chatglm": Family("pairs", fused=True),
    "cohere2": Family(
        "pairs", norm="layer", parallel="always", period=4, unrotated="full", logits="multiplied"
    ),
    "command-r": Family(
        "pairs", norm="layer", parallel="always", qk_norm="each", logits="multiplied"
    ),
    "ernie4_5": Family("pairs"),
    "exaone": Family(),
    "exaone4": Family(pre_norm=False, post_norm=True, qk_norm="head", period=4, unrotated="full"),
    "gemma": Family(activation="gelu_tanh", root_scaled=True),
    "gemma2": Family(
        post_norm=True,
        activation="gelu_tanh",
        period=2,
        window=4096,
        softcaps=(50.0, 30.0),
        width_scaled=46,
        root_scaled=True,
    ),
    "gemma3": Family(
        post_norm=True,
        qk_norm="head",
        activation="gelu_tanh",
        period=6,
        local_base=10000.0,
        width_scaled=62,
        root_scaled=True,
    ),
    "gemma4": Family(
        post_norm=True, qk_norm="head", activation="gelu_tanh", period=6, root_scaled=True
    ),
    "glm4": Family("pairs", post_norm=True, fused=True),
    "gpt-oss": Family(ffn_norm="post_attention_norm", period=2, window=128),
    "granite": Family("pairs", halves=True, logits="divided"),
    "granitehybrid": Family("pairs", halves=True, logits="divided"),
    "granitemoe": Family("pairs", halves=True, logits="divided"),
    "hunyuan-dense": Family(qk_norm="head", qk_norm_late=True),
    "jais2": Family(norm="layer", activation="relu2", gated=False),
    "lfm2": Family(qk_norm="head"),
    "llama": Family("pairs", halves=True, period=0),
    "minicpm": Family("pairs", halves=True, logits="divided"),
    "mistral3": Family("pairs", halves=True, period=0, tempered=True),
    "nemotron": Family(norm="layer", activation="relu2", gated=False),
    "olmo2": Family(pre_norm=False, post_norm=True, qk_norm="whole", period=4, local_base=0.0),
    "olmoe": Family(qk_norm="whole"),
    "phi3": Family(fused=True, period=0),
    "phi2": Family(norm="layer", parallel="always", activation="gelu_tanh", gated=False),
    "qwen2": Family(),
    "qwen2moe": Family(),
    "qwen2vl": Family(),
    "qwen3": Family(qk_norm="head"),
    "qwen3moe": Family(qk_norm="head"),
    "qwen35": Family(qk_norm="head", ffn_norm="post_attention_norm"),
    "qwen35moe": Family(qk_norm="head", ffn_norm="post_attention_norm"),
    "qwen3next": Family(qk_norm="head", ffn_norm="post_attention_norm"),
    "qwen3vl": Family(qk_norm="head"),
    "seed_oss": Family(ffn_norm="post_attention_norm"),
    "smollm3": Family("pairs", halves=True, unrotated="fourth"),
    "stablelm": Family(norm="layer", qk_norm="each", parallel="unnormed"),
    "starcoder2": Family(norm="layer", activation="gelu_tanh", gated=False, period=0),
}
"""Every architecture of ``dense.Dense``, and those with files of their own."""
