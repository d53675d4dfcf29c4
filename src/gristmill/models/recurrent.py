"""What layers with a state of fixed size share: plain functions, called by the model files."""

from __future__ import annotations

from dataclasses import replace

from gristmill.backends.ops import Ops, X
from gristmill.errors import FormatError
from gristmill.models.layers import Weights
from gristmill.models.metadata import Metadata
from gristmill.models.wants import Wants
from gristmill.types import Checkpoint

MOST_TAPS = 16
"""Longest short convolution that back ends have."""
_KV_HEADS = "attention.head_count_kv"


def evened(checkpoint: Checkpoint, meta: Metadata) -> tuple[Checkpoint, list[bool]]:
    """The checkpoint with one number of key heads, and which layers attend: those that have any."""
    layers = meta.integer("block_count", 1, 4096)
    heads = meta.each(_KV_HEADS, 0, 1 << 16, layers)
    found = {count for count in heads if count}
    if len(found) > 1:
        raise FormatError(f"{meta.name(_KV_HEADS)!r} differs between layers that attend.")
    one = found.pop() if found else 1
    metadata = {**checkpoint.metadata, meta.name(_KV_HEADS): one}
    return replace(checkpoint, metadata=metadata), [count > 0 for count in heads]


def want_conv(wants: Wants, name: str, columns: int, taps: int) -> None:
    """A kernel for each column, as Hugging Face (with an axis of one) or GGUF shape it."""
    tensor = f"{name}.weight"
    shape = (columns, 1, taps) if wants.axes(tensor) == 3 else (columns, taps)
    wants.flat(tensor, tensor, *shape)
    wants.bias(f"{name}.bias", (f"{name}.bias", columns))


def conv(ops: Ops, w: Weights, name: str, layer: int, x: X, taps: int) -> X:
    """The convolution called ``name``; its state lies first in the layer's."""
    return ops.short_conv(x, w[f"{name}.weight"], layer, taps=taps, bias=w.get(f"{name}.bias"))


def attending(meta: Metadata, layers: int) -> list[bool]:
    """Which layers attend: as a list says of those that do not, or each n-th."""
    key = "attention.recurrent_layers"
    flags = meta.array(key)
    if flags is None:
        period = meta.integer("full_attention_interval", 1, 1 << 16, 4)
        return [i % period == period - 1 for i in range(layers)]
    if len(flags) < layers:
        raise FormatError(f"{meta.name(key)!r} has {len(flags)} entries for {layers} layers.")
    return [not flag for flag in flags[:layers]]
