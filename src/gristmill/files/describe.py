"""What a model file holds, for people: ``gristmill show``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np

from gristmill.types import Checkpoint

_FIRST_ITEMS = 3
_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class EncodingShare:
    """How much of a model is stored in one encoding."""

    encoding: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """A model in numbers. ``None`` is: the file does not say."""

    path: str
    format: str
    architecture: str | None
    name: str | None
    license: str | None
    parameters: int
    weight_bytes: int
    """What the weights take in memory as they are stored: the bytes of all tensors."""
    bits_per_weight: float
    encodings: tuple[EncodingShare, ...]
    """Largest share of bytes first."""
    context: int | None
    layers: int | None
    width: int | None
    heads: int | None
    kv_heads: int | None
    vocabulary: int | None
    chat_template: str | None
    metadata: dict[str, object]
    """Every key; long arrays are shortened to ``{"length", "first"}``."""

    def as_json(self) -> dict[str, object]:
        """Plain data for ``json.dumps``."""
        return asdict(self)


def describe(checkpoint: Checkpoint) -> Description:
    """Count and summarise a checkpoint. No tensor data is read."""
    shares: dict[str, list[int]] = {}
    for tensor in checkpoint.tensors.values():
        share = shares.setdefault(tensor.encoding, [0, 0, 0])
        share[0] += 1
        share[1] += tensor.elements
        share[2] += tensor.nbytes
    encodings = [EncodingShare(name, *share) for name, share in shares.items()]
    encodings.sort(key=lambda e: (-e.bytes, e.encoding))
    parameters = sum(e.parameters for e in encodings)
    weight_bytes = sum(e.bytes for e in encodings)
    meta = checkpoint.metadata
    arch = _text(meta.get("general.architecture"))
    return Description(
        path=str(checkpoint.path),
        format=checkpoint.format,
        architecture=arch,
        name=_text(meta.get("general.name")),
        license=_text(meta.get("general.license")),
        parameters=parameters,
        weight_bytes=weight_bytes,
        bits_per_weight=round(weight_bytes * 8 / parameters, 3) if parameters else 0.0,
        encodings=tuple(encodings),
        context=_count(meta.get(f"{arch}.context_length")),
        layers=_count(meta.get(f"{arch}.block_count")),
        width=_count(meta.get(f"{arch}.embedding_length")),
        heads=_count(meta.get(f"{arch}.attention.head_count")),
        kv_heads=_count(meta.get(f"{arch}.attention.head_count_kv")),
        vocabulary=_vocabulary(checkpoint, arch),
        chat_template=_text(meta.get(_TEMPLATE_KEY)),
        metadata={key: _short(value) for key, value in meta.items() if key != _TEMPLATE_KEY},
    )


def _vocabulary(checkpoint: Checkpoint, arch: str | None) -> int | None:
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        return len(cast("list[object]", tokens))
    return _count(checkpoint.metadata.get(f"{arch}.vocab_size"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _short(value: object) -> object:
    """Plain data for a metadata value; only the first items of a long array."""
    if isinstance(value, np.ndarray):
        numbers = cast("np.ndarray[tuple[int], np.dtype[np.generic]]", value)
        items: list[object] = numbers[:_FIRST_ITEMS].tolist()
        return {"length": numbers.size, "first": [_short(item) for item in items]}
    if isinstance(value, list):
        entries = cast("list[object]", value)
        return {"length": len(entries), "first": [_short(v) for v in entries[:_FIRST_ITEMS]]}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value
