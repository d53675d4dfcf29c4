"""A folder's tokenizer in GGUF's words: what ``tokenizer.json`` says, as ``tokenizer.ggml.*``.

Byte-level BPE becomes "gpt2", with the rule for cutting words found by trying: the one whose cuts
of some awkward texts are those of the library. BPE with bytes to fall back on becomes "llama",
whose scores are the ranks of merges. The result is compared with the original on the same
texts, so that a tokenizer that GGUF cannot tell is refused, not written wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Library

from gristmill.errors import UnsupportedError
from gristmill.text import library
from gristmill.text.pretokenizers import NAMES, PreTokenizer
from gristmill.text.tokenizer import Tokenizer
from gristmill.text.vocab import TokenType

PROBES = (
    "Hello, world! I've 3 cats; they'll  eat 1234567 mice...\n\n\tDon't WE'RE  \n  x = y*2 - 10;",
    " \n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n 🚀 (normal) 😶\u200d🌫️ ✅ 🦙🦙 3 33 333 3333 3.3",
    "កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български  ````",
    '"".. !!?? camelCaseWords HTTPServer ÄÖÜß naïve café Ελληνικά עברית العربية ไทย',
    "日本語テスト 한국어 ½ ² ① def f(a, b):\r\n    return a+b  # 'D you like tea?\r\n\r\n",
    "<tag attr='1'>&amp;</tag> /a/b\\c \u200b x   leading spaces, trailing   ",
)
"""Texts that tokenizers cut differently."""

_FIRST = {"llama3": "llama-bpe"}
_SPECIAL = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
}
Settings = Mapping[str, Mapping[str, object]]


def describe(folder: Path, settings: Settings, size: int, kind: str | None) -> dict[str, object]:
    """``tokenizer.ggml.*`` for a folder, padded to ``size`` tokens (a model's output).

    ``settings``: as for ``library.read``. ``kind``: the architecture's own model of tokenizer,
    where it has one. Raises SourceError, FormatError, UnsupportedError.
    """
    parts = library.read(folder, settings)
    tree = cast("dict[str, object]", json.loads((folder / "tokenizer.json").read_bytes()))
    model = cast("Mapping[str, object]", tree.get("model") or {})
    vocabulary = parts.vocabulary
    texts = [*vocabulary.texts, *(f"[PAD{i}]" for i in range(len(vocabulary), size))]
    types = [int(t) for t in vocabulary.types] + [int(TokenType.UNUSED)] * (
        len(texts) - len(vocabulary)
    )
    made: dict[str, object] = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}
    for field, key in _SPECIAL.items():
        if getattr(vocabulary, field) is not None:
            made[key] = getattr(vocabulary, field)
    others = sorted(vocabulary.eos_ids - {vocabulary.eos})
    if others:
        made["tokenizer.ggml.eot_token_id"] = others[0]
    pad = library.named(settings, "pad_token", vocabulary.ids)
    if pad is not None:
        made["tokenizer.ggml.padding_token_id"] = pad
    made["tokenizer.ggml.add_bos_token"] = vocabulary.add_bos
    made["tokenizer.ggml.add_eos_token"] = vocabulary.add_eos
    original = Tokenizer(vocabulary, parts)
    if model.get("type") != "BPE" and "merges" not in model:
        raise UnsupportedError(
            f"{folder / 'tokenizer.json'} is of type {model.get('type')!r:.60}; BPE can be written "
            "as GGUF."
        )
    merges = _merges(model)
    if kind is not None:
        own = {"tokenizer.ggml.model": kind, "tokenizer.ggml.merges": merges}
        return _agreeing(folder, made | own, original)
    if parts.spelling == "bytes":
        own = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": merges}
        for name in _rules(tree, bool(model.get("ignore_merges"))):
            candidate = {**made, **own, "tokenizer.ggml.pre": name}
            if _agrees(candidate, original):
                return candidate
        raise UnsupportedError(
            f"{folder / 'tokenizer.json'} cuts words by a rule that GGUF has no name for."
        )
    return _agreeing(
        folder,
        made | _scored(texts, types, merges, parts, model.get("unk_token")),
        original,
        blank=False,
    )


def _merges(model: Mapping[str, object]) -> list[str]:
    """Each as "left right"; newer files have pairs."""
    found: list[str] = []
    for merge in cast("Sequence[object]", model.get("merges") or ()):
        pair = merge if isinstance(merge, str) else " ".join(cast("Sequence[str]", merge))
        found.append(pair)
    return found


def _scored(
    texts: list[str],
    types: list[int],
    merges: list[str],
    parts: library.Parts,
    unknown_text: object,
) -> dict[str, object]:
    """SentencePiece's model: the token of an earlier merge has the higher score."""
    scores = dict[str, float]()
    for rank, merge in enumerate(merges):
        scores.setdefault(merge.replace(" ", ""), -float(rank))
    worst = -float(len(merges))
    first = Tokenizer(parts.vocabulary, parts)
    begins = first.encode("a", add_special=False, parse_special=False)
    prefixed = bool(begins) and first.token_text(begins[0]).startswith("▁")
    for i, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            texts[i] = texts[i].replace("▁", " ")
    unknown = parts.vocabulary.ids.get(str(unknown_text))
    if unknown is not None:
        types[unknown] = int(TokenType.UNKNOWN)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [scores.get(text, worst) for text in texts],
        "tokenizer.ggml.add_space_prefix": prefixed,
    }


# ------------------------------------------------------------ which rule


def _rules(tree: Mapping[str, object], ignore_merges: bool) -> list[str]:
    """The rules that cut the probes as the library does, the likeliest first."""
    original = Library.from_str(
        json.dumps({**tree, "added_tokens": [], "post_processor": None, "truncation": None})
    ).pre_tokenizer
    if original is None:
        return []
    wanted = [original.pre_tokenize_str(probe) for probe in PROBES]
    fitting: dict[PreTokenizer, str] = {}
    seen: dict[tuple[str, ...], bool] = {}
    for name, rule in NAMES.items():
        if rule.kind != "bytes":
            continue
        if rule.patterns not in seen:
            seen[rule.patterns] = _cuts(rule) == wanted
        if seen[rule.patterns]:
            first = rule
            same = (first.patterns, first.ignore_merges, first.add_bos, first.add_sep)
            if same not in [(r.patterns, r.ignore_merges, r.add_bos, r.add_sep) for r in fitting]:
                fitting[rule] = _FIRST.get(name, name)
    ordered = sorted(fitting, key=lambda rule: (rule.ignore_merges != ignore_merges, rule.add_sep))
    return [fitting[rule] for rule in ordered]


def _cuts(rule: PreTokenizer) -> list[list[tuple[str, tuple[int, int]]]]:
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns
    ]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    whole = pre_tokenizers.Sequence(splits)
    return [whole.pre_tokenize_str(probe) for probe in PROBES]


def _agrees(metadata: Mapping[str, object], original: Tokenizer, *, blank: bool = True) -> bool:
    """``blank``: also for texts that begin with blanks, where newer folders put no other before."""
    ours = Tokenizer.from_gguf(metadata)
    return all(
        ours.encode(probe, add_special=True, parse_special=False)
        == original.encode(probe, add_special=True, parse_special=False)
        for probe in PROBES
        if blank or not probe.startswith(" ")
    )


def _agreeing(
    folder: Path, made: dict[str, object], original: Tokenizer, *, blank: bool = True
) -> dict[str, object]:
    if not _agrees(made, original, blank=blank):
        raise UnsupportedError(
            f"{folder / 'tokenizer.json'} cuts texts in a way that GGUF has no words for."
        )
    return made
