"""Ids that llama.cpp gave for three real vocabularies (see golden/text/make_tokens.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.text.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "text" / "tokens.json").read_text())[
    "models"
]


def metadata(vocabulary: dict[str, Any]) -> dict[str, Any]:
    """The slice as a full vocabulary: places without a token hold a private text."""
    size = vocabulary["size"]
    tokens = [f"\ue000{i}" for i in range(size)]
    types, scores = [1] * size, [0.0] * size
    for i, (text, kind, score) in vocabulary["tokens"].items():
        tokens[int(i)], types[int(i)], scores[int(i)] = text, kind, score
    keys = {k: v for k, v in vocabulary.items() if k.startswith("tokenizer.")}
    return keys | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.merges": vocabulary["merges"],
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_ids_equal_llamacpp(name: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(GOLDEN[name]["vocabulary"]))
    assert len(GOLDEN[name]["cases"]) > 10
    for text, plain, parsed in GOLDEN[name]["cases"]:
        # SentencePiece writes a space as U+2581, so one in the text comes back as a space
        shown = text.replace("\u2581", " ") if tokenizer.model == "llama" else text
        assert tokenizer.encode(text, add_special=False, parse_special=False) == plain, text
        assert tokenizer.encode(text, add_special=False, parse_special=True) == parsed, text
        assert tokenizer.decode(plain) == shown
