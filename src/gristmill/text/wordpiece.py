"""WordPiece (BERT's family), run by the ``tokenizers`` library.

GGUF marks the start of a word with U+2581 where BERT's own files mark its continuation with
``##``; here the marks are turned back. Source of the scheme: Devlin et al. 2018, and the
``tokenizers`` library's BertNormalizer for the cleaning of text.
"""

from __future__ import annotations

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from gristmill.text.merge import SPACE
from gristmill.text.vocab import TokenType, Vocabulary


class WordPieceEncoder:
    """Plain text to ids, the longest piece first; a word that cannot be covered is unknown."""

    def __init__(self, vocab: Vocabulary) -> None:
        ids: dict[str, int] = {}
        for i, (text, kind) in enumerate(zip(vocab.texts, vocab.types.tolist(), strict=True)):
            if kind != int(TokenType.CONTROL):
                ids[text[1:] if text.startswith(SPACE) else "##" + text] = i
        unknown = vocab.texts[vocab.unk] if vocab.unk is not None else "[UNK]"
        ids[unknown] = vocab.unk if vocab.unk is not None else 0
        self._tokenizer = Tokenizer(
            models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=100)
        )
        self._tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=vocab.strip_accents,
            lowercase=vocab.lowercase,
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
