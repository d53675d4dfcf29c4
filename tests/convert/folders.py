"""Small whole folders: a family's tiny model with a tokenizer of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.files import safetensors
from tests.models.recipes import FOLDER, values


def tokenizer_of(kind: str) -> Tokenizer:
    """A small one, trained here."""
    text = ["Hello world, don't count 1234567 cats!", "x = y*2\n\n  return naïve 日本語 🚀"] * 3
    if kind == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            text, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
        )
    else:
        tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
        merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
        vocab = {token: i for i, token in enumerate(tokens)}
        made = Tokenizer(
            models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
        )
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    made.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>")])
    return made


def folder_of(path: Path, name: str, tokenizer: Tokenizer) -> Path:
    """A family's tiny model, its vocabulary grown to the tokenizer's."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    size = tokenizer.get_vocab_size() + 5
    entries: dict[str, tuple[str, list[int], bytes]] = {}
    for key, shape, spread, centre in data["tensors"]:
        grown = [size, *shape[1:]] if shape[0] == data["config"]["vocab_size"] else shape
        made = values(key, tuple(grown), spread, centre)
        entries[key] = ("F32", grown, made.tobytes())
    path.mkdir()
    (path / "model.safetensors").write_bytes(safetensors.shard(**entries))
    config = {**data["config"], "vocab_size": size}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer.save(str(path / "tokenizer.json"))
    more = {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"}
    (path / "tokenizer_config.json").write_text(json.dumps(more), encoding="utf-8")
    return path
