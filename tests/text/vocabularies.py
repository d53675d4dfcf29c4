"""Small vocabularies for tests, as GGUF metadata."""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def byte_alphabet() -> list[str]:
    """GPT-2's 256 characters, by byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(hidden)) for b in range(256)]


def bpe(
    merges: list[str],
    special: dict[str, int] | None = None,
    pre: str = "qwen2",
    **keys: Any,
) -> dict[str, Any]:
    """Byte-level BPE: 256 bytes, what the merges make, then the special tokens."""
    texts = byte_alphabet() + list(dict.fromkeys(m.replace(" ", "") for m in merges))
    special = special or {}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts + list(special),
        "tokenizer.ggml.token_type": [NORMAL] * len(texts) + list(special.values()),
        "tokenizer.ggml.merges": merges,
    } | {f"tokenizer.ggml.{k}": v for k, v in keys.items()}


def sentencepiece(
    pieces: dict[str, float], special: dict[str, int] | None = None, **keys: Any
) -> dict[str, Any]:
    """SentencePiece BPE: <unk> <s> </s>, 256 bytes, the pieces, then the special tokens."""
    special = special or {}
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *pieces,
        *special,
    ]
    types = [
        UNKNOWN,
        CONTROL,
        CONTROL,
        *[BYTE] * 256,
        *[NORMAL] * len(pieces),
        *special.values(),
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()) + [0.0] * len(special),
    } | {f"tokenizer.ggml.{k}": v for k, v in keys.items()}
