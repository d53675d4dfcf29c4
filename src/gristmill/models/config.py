"""The shape of a dense decoder, read from GGUF metadata and checked."""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass, replace

from gristmill.backends.ops import Rope
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.families import Family
from gristmill.models.metadata import Metadata
from gristmill.models.rope import plain_frequencies, resolve_rope
from gristmill.models.routers import Mixture, read_mixture
from gristmill.models.windows import local_layers, read_window, unrotated_layers
from gristmill.types import Checkpoint

_MANY = 1 << 24
"""No dimension of a real model comes near; larger ones only overflow somewhere later."""


@dataclass(frozen=True)
class Config:
    """What the forward of a dense decoder needs to know. Sizes are counted in features."""

    architecture: str
    family: Family
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    """Width between the two halves of the feed-forward network."""
    vocab: int
    context: int
    """Most tokens the model was made for."""
    eps: float
    attention_scale: float
    rope: Rope
    window: int = 0
    """Tokens a sliding-window layer sees, itself included; 0 if the model has no such layer."""
    local: tuple[bool, ...] = ()
    """For each layer, whether it slides."""
    local_rope: Rope | None = None
    """The rotation of sliding layers; None if it is the same."""
    unrotated: tuple[bool, ...] = ()
    """For each layer, whether its q and k stay as they are; empty if all are rotated."""
    paired_heads: bool = False
    """Whether the rows of q and k lie in halves, and are wanted in pairs (``ops.Part``)."""
    norm_plus: float = 0.0
    """What is added to the weights of norms: 1 where a file has Gemma's w of 1 + w."""
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """By what is multiplied what a layer's halves add."""
    logit_scale: float = 1.0
    mixture: Mixture | None = None
    """The experts that take the place of the feed-forward network, if the model has any."""
    query_growth: tuple[float, int] | None = None
    """How q grows with the position: ``Rope.growth`` and ``Rope.growth_after``."""

    def sliding(self, layer: int) -> bool:
        """Whether ``layer`` sees its window only."""
        return bool(self.local) and self.local[layer]

    def rotation(self, layer: int) -> Rope | None:
        """How q and k of ``layer`` are rotated; None if they are not."""
        if self.unrotated and self.unrotated[layer]:
            return None
        return self.local_rope if self.sliding(layer) and self.local_rope else self.rope

    def query_rotation(self, layer: int) -> Rope | None:
        """The same for q, which may grow with the position."""
        rope = self.rotation(layer)
        if rope is None or self.query_growth is None:
            return rope
        return replace(rope, growth=self.query_growth[0], growth_after=self.query_growth[1])


def read_config(
    checkpoint: Checkpoint, family: Family, context: int | None, uneven: bool = False
) -> Config:
    """The config of a dense decoder of ``family``.

    ``context`` is what will be served (None: all the model has); LongRoPE depends on it.
    ``uneven``: layers may differ in key heads and hidden width; the config has the first's.
    Raises FormatError for values that cannot be, UnsupportedError for what is not served.
    """
    meta = Metadata(checkpoint.metadata)
    width = meta.integer("embedding_length", 1, _MANY)
    heads = meta.uniform("attention.head_count", 1, 1 << 16)
    alike = meta.first if uneven else meta.uniform
    kv_heads = alike("attention.head_count_kv", 1, 1 << 16, heads)
    if heads % kv_heads:
        raise FormatError(
            f"{kv_heads} key heads cannot be shared evenly by {heads} query heads "
            f"({meta.name('attention.head_count_kv')!r})."
        )
    head_dim = _head_dim(meta, width, heads)
    model_context = meta.integer("context_length", 1, (1 << 31) - 1)
    rotated = meta.integer("rope.dimension_count", 2, head_dim, head_dim)
    if rotated % 2:
        raise FormatError(f"{meta.name('rope.dimension_count')!r} is {rotated}; it must be even.")
    layers = _layers(checkpoint, meta)
    window = read_window(meta, family, layers, model_context)
    local = local_layers(meta, family, layers) if window else ()
    hidden = alike(
        "feed_forward_length",
        1,
        _MANY,
        meta.integer("expert_feed_forward_length", 1, _MANY)
        if meta.has("expert_feed_forward_length")
        else None,
    )
    style = family.style
    if style == "pairs" and meta.array("rope.dimension_sections"):
        style = "half"  # the converter deals pairs into halves for rotations by three positions
    rope = resolve_rope(checkpoint, meta, rotated, style, context or model_context)
    eps = "layer_norm_rms_epsilon" if family.norm == "rms" else "layer_norm_epsilon"
    return Config(
        architecture=meta.architecture,
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab=_vocab(checkpoint, width),
        context=model_context,
        eps=meta.number(f"attention.{eps}", 0.0, 1.0),
        attention_scale=_attention_scale(meta, family, layers, width // heads, head_dim),
        rope=rope,
        window=window,
        local=local,
        local_rope=_local_rope(meta, family, rope) if window else None,
        unrotated=unrotated_layers(meta, family, layers, local),
        paired_heads=checkpoint.format == "hf" and family.halves,
        norm_plus=meta.number("norm_plus", 0.0, 1.0, 0.0),
        attention_softcap=meta.number("attn_logit_softcapping", 0.0, 1e6, family.softcaps[0]),
        final_softcap=meta.number("final_logit_softcapping", 0.0, 1e6, family.softcaps[1]),
        embedding_scale=_embedding_scale(meta, family, width),
        residual_scale=_residual_scale(meta, layers),
        logit_scale=_logit_scale(meta, family, width),
        mixture=read_mixture(meta, hidden, layers),
        query_growth=_query_growth(meta, family),
    )


def _attention_scale(
    meta: Metadata, family: Family, layers: int, per_head: int, head_dim: int
) -> float:
    usual = per_head if layers == family.width_scaled else head_dim
    return meta.number("attention.scale", 0.0, 1e6, 0.0) or usual**-0.5


def _local_rope(meta: Metadata, family: Family, rope: Rope) -> Rope | None:
    """The rotation of sliding layers where it is another: never scaled."""
    if family.local_base is None:
        return None
    base = family.local_base or meta.number("rope.freq_base", 1.0, 1e15, 10000.0)
    base = meta.number("rope.freq_base_swa", 1.0, 1e15, base)
    return Rope(tuple(plain_frequencies(base, 2 * len(rope.inv_freq))), family.style)


def _query_growth(meta: Metadata, family: Family) -> tuple[float, int] | None:
    growth = meta.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    if not family.tempered or growth == 0:
        return None
    context = meta.integer("context_length", 1, (1 << 31) - 1)
    key = "rope.scaling.original_context_length"
    return growth, meta.integer(key, 1, (1 << 31) - 1, context)


def _embedding_scale(meta: Metadata, family: Family, width: int) -> float:
    if family.root_scaled:
        return math.sqrt(width)
    usual = 12.0 if meta.architecture == "minicpm" else 1.0
    return meta.number("embedding_scale", 0.0, 1e6, 0.0) or usual


def _residual_scale(meta: Metadata, layers: int) -> float:
    usual = 1.4 / math.sqrt(layers) if meta.architecture == "minicpm" else 1.0
    return meta.number("residual_scale", 0.0, 1e6, 0.0) or usual


def _logit_scale(meta: Metadata, family: Family, width: int) -> float:
    """The factor of logits, from a key that some architectures divide by."""
    if not family.logits:
        return 1.0
    usual = width / 256 if meta.architecture == "minicpm" else 1.0
    stored = meta.number("logit_scale", 0.0, 1e6, 0.0) or usual
    return 1.0 / stored if family.logits == "divided" else stored


def _head_dim(meta: Metadata, width: int, heads: int) -> int:
    if not meta.has("attention.key_length") and width % heads:
        raise FormatError(
            f"The embedding's {width} features cannot be divided into {heads} heads, and "
            f"{meta.name('attention.key_length')!r} is missing."
        )
    head_dim = meta.integer("attention.key_length", 2, 1 << 16, width // heads)
    value_dim = meta.integer("attention.value_length", 1, 1 << 16, head_dim)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"Heads with {head_dim} key features and {value_dim} value features are not served."
        )
    return head_dim


def _layers(checkpoint: Checkpoint, meta: Metadata) -> int:
    """The number of layers, if the tensors agree with it."""
    layers = meta.integer("block_count", 1, 4096)
    found = {int(parts[1]) for name in checkpoint.tensors if _in_layer(parts := name.split("."))}
    if (found and max(found) >= layers) or len(found) < layers:
        raise FormatError(
            f"{meta.name('block_count')!r} is {layers}, but the file has tensors of "
            f"{len(found)} layers, the last of them number {max(found, default=-1)}."
        )
    return layers


def _in_layer(parts: list[str]) -> bool:
    return len(parts) > 2 and parts[0] == "blk" and parts[1].isascii() and parts[1].isdigit()


def _vocab(checkpoint: Checkpoint, width: int) -> int:
    """Rows of the embedding table, which every token of the tokenizer must have."""
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None:
        raise FormatError("The file has no tensor 'token_embd.weight', the embedding table.")
    if len(table.shape) != 2 or table.shape[1] != width or table.shape[0] < 1:
        raise FormatError(
            f"'token_embd.weight' has shape {table.shape}; it must be (tokens, {width})."
        )
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens) > table.shape[0]:
        raise FormatError(
            f"The tokenizer has {len(tokens)} tokens, but 'token_embd.weight' only "
            f"{table.shape[0]} rows."
        )
    return table.shape[0]
