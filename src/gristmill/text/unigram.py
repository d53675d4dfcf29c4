"""Unigram (T5, XLM-R), run by the ``tokenizers`` library: the likeliest cut of the whole text.

Source of the scheme: Kudo 2018; the character map of the file is SentencePiece's precompiled
normaliser.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from gristmill.errors import FormatError
from gristmill.text.merge import SPACE
from gristmill.text.vocab import TokenType, Vocabulary


class UnigramEncoder:
    """Plain text to ids by the best sum of scores."""

    def __init__(self, vocab: Vocabulary) -> None:
        plain = (
            int(TokenType.NORMAL),
            int(TokenType.USER_DEFINED),
            int(TokenType.UNUSED),
        )
        worst = min(vocab.scores, default=0.0) - 10.0
        # A token that text must never become still needs its place in the list; its text is
        # replaced by one that begins with a noncharacter, and scores so badly that it loses.
        pieces = [
            (text, score) if kind in plain else (f"\U0010ffff{i}", worst * 2)
            for i, (text, kind, score) in enumerate(
                zip(vocab.texts, vocab.types.tolist(), vocab.scores, strict=True)
            )
        ]
        try:
            self._tokenizer = Tokenizer(models.Unigram(pieces, vocab.unk, False))
            steps: list[normalizers.Normalizer] = []
            if vocab.charsmap:
                steps.append(normalizers.Precompiled(vocab.charsmap))
        except Exception as error:
            raise FormatError(f"The model's unigram tokenizer is damaged: {error}") from None
        if vocab.remove_extra_whitespaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
        if steps:
            self._tokenizer.normalizer = normalizers.Sequence(steps)
        scheme = "always" if vocab.add_space_prefix else "never"
        self._tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
