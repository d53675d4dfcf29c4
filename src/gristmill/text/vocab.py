"""A model's vocabulary as GGUF metadata tells it: tokens, their types, the special ids.

Key names and token types: the GGUF specification (``tokenizer.ggml.*``). Which texts end an
answer, and which defaults hold when a key is missing, follow what llama.cpp accepts, so that
a file that works there works here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

import numpy as np
import numpy.typing as npt

from gristmill.errors import FormatError, UnsupportedError
from gristmill.text.pretokenizers import PreTokenizer, find

log = logging.getLogger(__name__)

MAX_TOKENS = 1 << 24
"""No known vocabulary has more than a few hundred thousand tokens."""


class TokenType(IntEnum):
    """What a token is for (GGUF's ``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens whose text alone says that an answer has ended, whatever the metadata says.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

# Fill-in-the-middle padding, repository and file separators: a chat answer ends there too.
_FIM_END_TEXTS = (
    ("fim_pad_token_id", ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    ("fim_rep_token_id",
     ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")),
    ("fim_sep_token_id", ("<|file_sep|>",)),
)  # fmt: skip

# gpt-oss writes its channels with these; they are part of the text that a parser reads.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What holds for a tokenizer model when its file does not say."""

    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    sep: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False


_MODELS = {
    "gpt2": _Defaults(bos=11, eos=11),
    "gemma4": _Defaults(),
    "whitespace": _Defaults(bos=11, eos=11),
    "llama": _Defaults(bos=1, eos=2, unk=0, add_bos=True, add_space_prefix=True),
    "bert": _Defaults(bos=101, unk=100, sep=102, add_bos=True),
    "t5": _Defaults(eos=1, unk=2, add_eos=True),
}


@dataclass(slots=True)
class Vocabulary:
    """Everything the encoders and decoders need to know; checked, and not changed afterwards.

    ``texts[i]`` is token i as the file has it (bytes that are not UTF-8 as lone surrogates),
    ``types[i]`` its type. ``ids`` maps a text back; of equal texts the last wins.
    """

    model: str
    pre: PreTokenizer | None
    texts: list[str]
    types: npt.NDArray[np.int64]
    scores: list[float]
    ids: dict[str, int]
    merges: list[str]
    bos: int | None
    eos: int | None
    unk: int | None
    sep: int | None
    add_bos: bool
    add_eos: bool
    add_sep: bool
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    lowercase: bool
    strip_accents: bool
    charsmap: bytes
    eos_ids: frozenset[int] = frozenset()
    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.texts)

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids whose type is one of ``types``, ascending."""
        return np.flatnonzero(np.isin(self.types, types)).tolist()

    def ids_except(self, *types: TokenType) -> dict[str, int]:
        """``ids`` without the tokens whose type is one of ``types``."""
        ids = dict(self.ids)
        for token in self.of_type(*types):
            if ids.get(self.texts[token]) == token:
                del ids[self.texts[token]]
        return ids


def read(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and check a vocabulary. Raises FormatError (damaged), UnsupportedError (unknown)."""
    keys = _Keys(metadata)
    model = keys.text("model")
    if model is None:
        raise FormatError("The model file has no tokenizer (no key 'tokenizer.ggml.model').")
    if model not in _MODELS:
        raise UnsupportedError(
            f"The model's tokenizer is '{model}'; supported are {', '.join(sorted(_MODELS))}."
        )
    defaults = _MODELS[model]
    texts = _texts(keys.strings("tokens"))
    pre = _pre_tokenizer(model, keys.text("pre"))
    merges = keys.strings("merges") if pre else []
    if pre and not merges:
        raise FormatError(f"The tokenizer '{model}' has no 'tokenizer.ggml.merges'.")
    types = keys.numbers("token_type", len(texts))
    scores = keys.numbers("scores", len(texts))
    lower = keys.flag("normalizer.lowercase", True)
    vocab = Vocabulary(
        model=model,
        pre=pre,
        texts=texts,
        types=np.ones(len(texts), np.int64) if types is None else types.astype(np.int64),
        scores=[0.0] * len(texts) if scores is None else cast("list[float]", scores.tolist()),
        ids=dict(zip(texts, range(len(texts)), strict=True)),
        merges=merges,
        bos=keys.id("bos_token_id", len(texts), None if _no_bos(pre) else defaults.bos),
        eos=keys.id("eos_token_id", len(texts), defaults.eos),
        unk=keys.id("unknown_token_id", len(texts), defaults.unk),
        sep=keys.id("seperator_token_id", len(texts), defaults.sep),
        add_bos=keys.flag("add_bos_token", defaults.add_bos or bool(pre and pre.add_bos)),
        add_eos=keys.flag("add_eos_token", defaults.add_eos),
        add_sep=keys.flag("add_sep_token", model == "bert" or bool(pre and pre.add_sep)),
        add_space_prefix=keys.flag("add_space_prefix", defaults.add_space_prefix),
        remove_extra_whitespaces=keys.flag("remove_extra_whitespaces", False),
        lowercase=lower,
        strip_accents=keys.flag("normalizer.strip_accents", lower),
        charsmap=keys.raw("precompiled_charsmap"),
    )
    if pre and pre.kind == "gemma4":
        vocab.add_bos = True  # the published files say no, and the model needs it
    _find_ends(vocab, keys)
    _find_strips(vocab, metadata)
    return vocab


def _no_bos(pre: PreTokenizer | None) -> bool:
    return pre is not None and pre.name in ("chatglm-bpe", "glm4", "glm5")


def _texts(texts: list[str]) -> list[str]:
    if not texts:
        raise FormatError("The model's tokenizer has no tokens ('tokenizer.ggml.tokens').")
    if len(texts) > MAX_TOKENS:
        raise FormatError(f"The tokenizer has {len(texts)} tokens; at most {MAX_TOKENS} are read.")
    if "" in texts:
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    return texts


def _pre_tokenizer(model: str, name: str | None) -> PreTokenizer | None:
    if model not in ("gpt2", "gemma4", "whitespace"):
        return None
    if model == "gemma4":
        name = "gemma4"
    elif not name:
        log.warning(
            "The model file names no pre-tokenizer ('tokenizer.ggml.pre'); using 'default'. "
            "Answers may be worse than the model's own."
        )
        name = "default"
    return find(name)


class _Keys:
    """Typed access to ``tokenizer.ggml.*``: a wrong type is a FormatError that names the key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def _get(self, key: str, kinds: tuple[type, ...], what: str) -> object | None:
        value = self._metadata.get("tokenizer.ggml." + key)
        if value is not None and not isinstance(value, kinds):
            raise FormatError(f"'tokenizer.ggml.{key}' is {type(value).__name__}, not {what}.")
        return value

    def text(self, key: str) -> str | None:
        return cast("str | None", self._get(key, (str,), "text"))

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, (bool, np.bool_), "true or false")
        return default if value is None else bool(value)

    def id(self, key: str, limit: int, default: int | None) -> int | None:
        value = cast("int | None", self._get(key, (int, np.integer), "a number"))
        if value is not None and 0 <= int(value) < limit:
            return int(value)
        if value is not None:
            log.warning("'tokenizer.ggml.%s' is %d, beyond the vocabulary: ignored.", key, value)
        return default if default is not None and default < limit else None

    def strings(self, key: str) -> list[str]:
        value = cast("Sequence[object]", self._get(key, (list, tuple), "a list of texts") or [])
        if not all(map(str.__instancecheck__, value)):
            raise FormatError(f"'tokenizer.ggml.{key}' holds something else than texts.")
        return cast("list[str]", list(value))

    def numbers(self, key: str, length: int) -> npt.NDArray[np.float64] | None:
        """``length`` finite numbers, or None if the key is missing."""
        value = self._get(key, (list, tuple, np.ndarray), "a list of numbers")
        if value is None or len(cast("Sequence[object]", value)) == 0:
            return None
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise FormatError(f"'tokenizer.ggml.{key}' is not a list of numbers.") from None
        if array.ndim != 1 or array.size < length:
            raise FormatError(
                f"'tokenizer.ggml.{key}' has {array.size} entries for {length} tokens."
            )
        return np.nan_to_num(array[:length])

    def raw(self, key: str) -> bytes:
        value = self._get(key, (list, tuple, bytes, np.ndarray), "a list of bytes")
        if value is None or isinstance(value, bytes):
            return value or b""
        return np.asarray(value).astype(np.uint8).tobytes()


def _find_ends(vocab: Vocabulary, keys: _Keys) -> None:
    """The ends that GGUF's keys name, and those that are known by their texts."""
    named = {key: keys.id(key, len(vocab), None) for key, _ in _FIM_END_TEXTS}
    known = {key: number for key, number in named.items() if number is not None}
    more = (keys.id(key, len(vocab), None) for key in ("eot_token_id", "eom_token_id"))
    find_ends(vocab, frozenset(i for i in more if i is not None), known)


def find_ends(
    vocab: Vocabulary, said: frozenset[int], named: Mapping[str, int] | None = None
) -> None:
    """Fill ``eos_ids``, and mark tokens that end an answer as control tokens.

    ``said`` are ids that the file says end one; ``named`` are ids by GGUF's keys.
    """
    ends: set[int] = set(said)
    for key, texts in _FIM_END_TEXTS:
        found = (named or {}).get(key)
        if found is None:
            found = next((vocab.ids[t] for t in texts if t in vocab.ids), None)
            if found is not None:
                vocab.types[found] = int(TokenType.CONTROL)
        if found is not None:
            ends.add(found)
    for text in _END_TEXTS:
        if text in vocab.ids and not _is_html(vocab, text):
            ends.add(vocab.ids[text])
            vocab.types[vocab.ids[text]] = int(TokenType.CONTROL)
    for text in _ALWAYS_SHOWN:
        if text in vocab.ids:
            vocab.types[vocab.ids[text]] = int(TokenType.USER_DEFINED)
    if vocab.eos is not None:
        ends.add(vocab.eos)
    vocab.eos_ids = frozenset(_without_false_ends(vocab, ends))


def _is_html(vocab: Vocabulary, text: str) -> bool:
    """Where ``</s>`` is no control token (Gemma, Qwen), it closes struck-out text."""
    return text == "</s>" and vocab.types[vocab.ids[text]] != TokenType.CONTROL


def _without_false_ends(vocab: Vocabulary, ends: set[int]) -> set[int]:
    """Drop tokens that only look like an end beside the others of their family."""
    have = {vocab.texts[i] for i in ends}
    if "<|end|>" in have and (
        {"<|return|>", "<|call|>"} <= have
        or ("<|flush|>" in have and have & {"<|call|>", "<|calls|>"})
    ):  # Harmony and Solar: ends a message of several, not the answer
        end = vocab.ids["<|end|>"]
        vocab.types[end] = int(TokenType.USER_DEFINED)
        ends.discard(end)
    if "</s>" in have and have & {
        "<|tool_response>",
        "<|plamo:eos|>",
    }:  # HTML's strike-through
        end = vocab.ids["</s>"]
        vocab.types[end] = int(TokenType.NORMAL)
        ends.discard(end)
    return ends


def _find_strips(vocab: Vocabulary, metadata: Mapping[str, object]) -> None:
    """Tokens that swallow white space beside them. GGUF does not say; model names do."""
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    arch = str(metadata.get("general.architecture", ""))
    name = str(metadata.get("general.name", "")).lower()
    mask = None
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or arch in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        mask = vocab.ids.get("<mask>")
    elif "phi-3" in name or "phi3" in name:
        special = vocab.of_type(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        keep = {vocab.ids.get(t) for t in ("<unk>", "<s>", "<|endoftext|>")}
        vocab.rstrip = frozenset(i for i in special if i not in keep)
    elif "modern-bert" in name:
        mask = vocab.ids.get("[MASK]")
    if mask is not None:
        vocab.lstrip = frozenset({mask})
