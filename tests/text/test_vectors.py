"""llama.cpp's own tokenizer vectors: ``ggml-vocab-*.gguf`` with ``.inp`` and ``.out``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.files.gguf import open_gguf
from gristmill.text.tokenizer import Tokenizer

NAMES = [
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
    "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_vectors(llamacpp: Path, name: str) -> None:
    path = llamacpp / f"ggml-vocab-{name}.gguf"
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    texts = texts[:-1] if texts[-1] == "" else texts
    wanted = path.with_suffix(".gguf.out").read_text().splitlines()
    assert len(texts) == len(wanted) > 20
    tokenizer = Tokenizer.from_gguf(open_gguf(path).metadata)
    failed: list[tuple[str, list[int], list[int]]] = []
    for text, line in zip(texts, wanted, strict=True):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        if ids != [int(x) for x in line.split()]:
            failed.append((text, ids, [int(x) for x in line.split()]))
    assert not failed
