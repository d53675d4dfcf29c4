"""RoPE scalings, resolved to the frequencies of ``ops.Rope``.

What GGUF can name in ``<arch>.rope.scaling.type``: "none", "linear", "yarn", "longrope". Llama
3's scaling has no name of its own: its converter writes the divisor of every frequency into
``rope_freqs.weight``. Sources: arXiv 2306.15595 (linear), 2309.00071 (YaRN), 2402.13753
(LongRoPE); compared in the tests with Hugging Face's formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

from gristmill.backends.ops import Rope
from gristmill.errors import FormatError, UnsupportedError
from gristmill.models.metadata import Metadata
from gristmill.quant import decode
from gristmill.types import Checkpoint

Style = Literal["half", "pairs"]

SCALINGS = ("none", "linear", "yarn", "longrope")

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that this module reads; no weight of the model itself."""


def plain_frequencies(base: float, dims: int) -> list[float]:
    """base^(−2i/dims) for each of dims/2 pairs: radians per position."""
    return [base ** (-2 * i / dims) for i in range(dims // 2)]


def resolve_rope(
    checkpoint: Checkpoint, meta: Metadata, dims: int, style: Style, context: int
) -> Rope:
    """The rotation that the file asks for, over ``dims`` features of each head.

    ``context`` (tokens) decides between LongRoPE's two tables. Raises UnsupportedError for a
    scaling that is not known, FormatError for values that cannot be.
    """
    base = meta.number("rope.freq_base", 1.0, 1e15, 10000.0)
    # Phi-3's converter writes LongRoPE's tables, but no name of it.
    tables = any(name in checkpoint.tensors for name in ROPE_TENSORS[1:])
    kind = meta.text("rope.scaling.type", "longrope" if tables else "linear")
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"RoPE scaling {kind!r:.60} is not known; known are {', '.join(SCALINGS)} and "
            "the factors of 'rope_freqs.weight'."
        )
    old = meta.number("rope.scale_linear", 0.0, 1e6, 0.0)
    factor = meta.number("rope.scaling.factor", 0.0, 1e6, old) or 1.0
    scale = meta.number("rope.scaling.attn_factor", 1e-6, 1e6, 1.0)
    frequencies = plain_frequencies(base, dims)
    if kind == "longrope":
        frequencies, scale = _longrope(checkpoint, meta, frequencies, context)
    elif (factors := _factors(checkpoint, "rope_freqs.weight", dims)) is not None:
        frequencies = [f / by for f, by in zip(frequencies, factors, strict=True)]
    if kind == "linear":
        frequencies = [f / factor for f in frequencies]
    elif kind == "yarn":
        frequencies = _yarn(meta, frequencies, base, factor)
        scale *= _yarn_attention(meta, factor)
    return Rope(tuple(frequencies), style, scale)


def _factors(checkpoint: Checkpoint, name: str, dims: int) -> Sequence[float] | None:
    """The divisors of the frequencies that the file holds under ``name``, if it does."""
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        return None
    if tensor.shape != (dims // 2,):
        raise FormatError(f"{name!r} has shape {tensor.shape}; it must be ({dims // 2},).")
    factors = cast("list[float]", decode(tensor).tolist())
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise FormatError(f"{name!r} holds a factor that is not a positive number.")
    return factors


def _original_context(meta: Metadata) -> int:
    limit = (1 << 31) - 1
    context = meta.integer("context_length", 1, limit)
    return meta.integer("rope.scaling.original_context_length", 1, limit, context)


def _yarn(meta: Metadata, frequencies: Sequence[float], base: float, factor: float) -> list[float]:
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp lies between.

    The ramp's ends are the pairs that turn ``beta_fast`` and ``beta_slow`` times within the
    context the model was first trained on (arXiv 2309.00071, section 3.2).
    """
    dims, original = 2 * len(frequencies), _original_context(meta)
    if base == 1.0:
        raise FormatError(f"{meta.name('rope.freq_base')!r} is 1; with YaRN it must be larger.")

    def pair_of(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    fast = meta.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0)
    slow = meta.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0)
    mix = meta.number("rope.scaling.yarn_ext_factor", -1.0, 1.0, 1.0)
    mix = 1.0 if mix < 0 else mix  # a negative number is how llama.cpp writes "not set"
    low, high = pair_of(fast), pair_of(slow)
    if meta.flag("rope.scaling.yarn_truncate", meta.architecture != "gpt-oss"):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    span = max(high - low, 0.001)
    result: list[float] = []
    for i, frequency in enumerate(frequencies):
        kept = (1 - min(max((i - low) / span, 0.0), 1.0)) * mix
        result.append(frequency / factor * (1 - kept) + frequency * kept)
    return result


def _yarn_attention(meta: Metadata, factor: float) -> float:
    """YaRN's scale of sine and cosine: as stored, or by its formula."""
    stored = meta.number("rope.scaling.yarn_attn_factor", 0.0, 1e6, 0.0)
    if stored:
        return stored

    def grow(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    all_dims = meta.number("rope.scaling.yarn_log_multiplier", 0.0, 1e6, 0.0)
    return grow(1.0) / grow(all_dims) if all_dims else grow(1.0)


def _longrope(
    checkpoint: Checkpoint, meta: Metadata, frequencies: Sequence[float], context: int
) -> tuple[list[float], float]:
    """One divisor per pair, from the long table beyond the original context.

    Hugging Face changes tables when a sequence grows beyond the original context, which would
    invalidate its keys; like llama.cpp, the table is chosen by the context that is served.
    """
    original = _original_context(meta)
    name = "rope_factors_long.weight" if context > original else "rope_factors_short.weight"
    both = {n: _factors(checkpoint, n, 2 * len(frequencies)) for n in ROPE_TENSORS[1:]}
    for each, found in both.items():
        if found is None:
            raise FormatError(f"The file scales RoPE by 'longrope', but has no tensor {each!r}.")
    factors = both[name] or ()
    growth = meta.integer("context_length", 1, (1 << 31) - 1) / original
    usual = 1.0
    if growth > 1 and original > 1:
        usual = math.sqrt(1 + math.log(growth) / math.log(original))
    scale = meta.number("rope.scaling.attn_factor", 1e-6, 1e6, usual)
    return [f / by for f, by in zip(frequencies, factors, strict=True)], scale
