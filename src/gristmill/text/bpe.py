"""Byte-level BPE (GPT-2's family), run by the ``tokenizers`` library.

Only plain text comes here: special tokens have been cut out before, and are unknown to the
library, so that no text can turn into one. Source of the scheme: Radford et al. 2019, §2.2.
"""

from __future__ import annotations

import logging

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from gristmill.text.pretokenizers import PreTokenizer
from gristmill.text.vocab import TokenType, Vocabulary

log = logging.getLogger(__name__)

_LONG_TEXT = 1 << 14
"""Characters beyond which the interpreter's lock is let go while encoding."""


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's spelling of each byte as one printable character."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


_TO_LATIN1 = {ord(char): byte for byte, char in _byte_alphabet().items()}


def spelled_bytes(text: str) -> bytes:
    """The bytes that ``text``, in GPT-2's alphabet, stands for; its UTF-8 if it is not in it."""
    try:
        if any(ord(char) not in _TO_LATIN1 for char in text):
            return text.encode("utf-8", "surrogateescape")
        return text.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


class BytePairEncoder:
    """Plain text to ids by ranked merges."""

    def __init__(self, vocab: Vocabulary, rule: PreTokenizer) -> None:
        ids = vocab.ids_except(TokenType.CONTROL, TokenType.UNKNOWN)
        self._tokenizer = Tokenizer(_model(ids, vocab.merges, rule.ignore_merges))
        splits: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns
        ]
        if rule.kind == "bytes":
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        else:  # "words": white space is only a border
            splits = [pre_tokenizers.WhitespaceSplit()]
            if vocab.model == "whitespace" and vocab.lowercase:
                self._tokenizer.normalizer = normalizers.Lowercase()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text (no lone surrogates)."""
        if len(text) < _LONG_TEXT:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        # The batch call lets go of the interpreter's lock: a long prompt stalls nobody.
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _model(ids: dict[str, int], merges: list[str], ignore_merges: bool) -> models.BPE:
    pairs: list[tuple[str, str]] = []
    for left, _, right in (merge.partition(" ") for merge in merges):
        # A raw vocabulary may have tokens that begin with the space that parts the sides.
        pairs.append(
            (left, right) if left else (" " + right.partition(" ")[0], right.partition(" ")[2])
        )
    try:
        return models.BPE(ids, pairs, ignore_merges=ignore_merges)
    except Exception as error:
        known = [p for p in pairs if p[0] in ids and p[1] in ids and p[0] + p[1] in ids]
        log.warning(
            "%d of %d merges name no token and are left out (%s).",
            len(pairs) - len(known), len(pairs), error,
        )  # fmt: skip
    clean = {t: i for t, i in ids.items() if t.isascii() or not _has_surrogate(t)}
    return models.BPE(
        clean,
        [p for p in known if p[0] in clean and p[1] in clean and p[0] + p[1] in clean],
        ignore_merges=ignore_merges,
    )


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(char) < 0xE000 for char in text)
