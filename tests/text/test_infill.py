"""Filling in: which tokens, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.text.infill import Infill, find_infill


class Chars:
    """A token for each of a few texts, and for every other character its code + 1000."""

    def __init__(self, *texts: str, bos: int | None = None) -> None:
        self.texts = texts
        self.vocab_size = 5000
        self.bos = bos
        self.add_bos = bos is not None

    def token_id(self, text: str, /) -> int | None:
        return self.texts.index(text) if text in self.texts else None

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special and not parse_special
        return [ord(char) + 1000 for char in text]


QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


def spell(ids: list[int]) -> str:
    """Tokens as digits, characters as themselves."""
    return "".join(str(i) if i < 1000 else chr(i - 1000) for i in ids)


def codes(text: str) -> list[int]:
    return [ord(char) + 1000 for char in text]


def made(*texts: str, metadata: Any = None, bos: int | None = None) -> Infill:
    found = find_infill(Chars(*texts, bos=bos), metadata or {})
    assert found is not None
    return found


def test_by_text() -> None:
    assert spell(made(*QWEN).prompt(codes("ab"), codes("cd"))) == "0ab1cd2"
    assert spell(made(*QWEN[:3], bos=9).prompt(codes("ab"), [])) == "90ab12"
    old = made("x", "<PRE>", "<SUF>", "<MID>")
    assert (old.prefix, old.suffix, old.middle, old.repo, old.file) == (1, 2, 3, None, None)


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_by_metadata(names: tuple[str, ...]) -> None:
    metadata = {f"tokenizer.ggml.{name}_token_id": 70 + i for i, name in enumerate(names)}
    found = made(*QWEN, metadata=metadata)
    assert (found.prefix, found.suffix, found.middle, found.file) == (70, 71, 72, 4)


@pytest.mark.parametrize("value", [-1, 5000, True, "7", 2**70, None])
def test_ids_that_are_none(value: Any) -> None:
    found = made(*QWEN, metadata={"tokenizer.ggml.fim_pre_token_id": value})
    assert found.prefix == 0


def test_none_without_all_three() -> None:
    assert find_infill(Chars(*QWEN[:2]), {}) is None
    assert find_infill(Chars(), {}) is None


def test_files_come_first() -> None:
    found = made(*QWEN)
    extra = [("f", "X"), ("g", "Y")]
    ids = found.prompt_within(codes("ab"), codes("cd"), extra, 100, 100)
    assert spell(ids) == "3myproject\n4f\nX4g\nY4filename\n0ab1cd2"
    cut = found.prompt_within(codes("abcdefgh"), codes("ijkl"), extra, 12, 12)
    assert spell(cut) == "\nY4filename\n0abcdefgh1i2"
    assert spell(found.prompt_within(codes("abcdefgh"), codes("ijkl"), extra, 8, 0)) == "0cdefgh12"


def test_files_without_a_token_for_them() -> None:
    found = made(*QWEN[:3])
    ids = found.prompt_within(codes("a"), codes("b"), [("f", "X")], 100, 100)
    assert spell(ids) == "\n\n--- snippet ---\n\nX0a1b2"
