"""The tokenizer: text to ids and back, built from a GGUF file's metadata.

Text is cut at special tokens first, and only what lies between is encoded; a special token
can therefore come out of ``encode`` only where the caller allows it. Lone surrogates in a text
(JSON can carry them, UTF-8 cannot) are read as U+FFFD, a pair of them as its character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from gristmill.errors import RequestError, SourceError
from gristmill.text import bpe, library, merge, vocab
from gristmill.text.special import SpecialFinder
from gristmill.text.unigram import UnigramEncoder
from gristmill.text.vocab import TokenType, Vocabulary
from gristmill.text.wordpiece import WordPieceEncoder
from gristmill.types import Checkpoint

Segment = tuple[str, bool]
"""A stretch of text, and whether special tokens in it count."""


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """Text to ids and back. Immutable once built; safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, parts: library.Parts | None = None) -> None:
        self._vocab = vocabulary
        self._encoder = parts.encoder if parts else _encoder(vocabulary)
        self._later = parts.later if parts else None
        self._spelling = parts.spelling if parts else _spelling(vocabulary)
        self._strips = parts.strips_start if parts else _strips(vocabulary)
        self._escape = vocabulary.pre is not None and vocabulary.pre.kind in (
            "gemma4",
            "spaces",
        )
        special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        user = vocabulary.of_type(TokenType.USER_DEFINED)
        self.special_ids = frozenset(special)
        """Ids that are no text: control and unknown tokens."""
        self._hidden = frozenset([*special, *vocabulary.of_type(TokenType.UNUSED)])
        texts = vocabulary.texts
        self._all = SpecialFinder((texts[i], i) for i in sorted([*special, *user]))
        self._user = SpecialFinder((texts[i], i) for i in user)
        self._pieces: list[bytes | None] = [None] * len(texts)
        self._longest = max(map(len, texts), default=0) or 1

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build from the file's ``tokenizer.*`` keys.

        Raises FormatError (missing or damaged), UnsupportedError (a kind that is not known).
        """
        return cls(vocab.read(metadata))

    @classmethod
    def from_folder(cls, metadata: Mapping[str, object], folder: Path) -> Tokenizer:
        """Build from a Hugging Face folder; ``metadata`` is its checkpoint's (``hf.*``).

        Raises SourceError (no tokenizer), FormatError (damaged), UnsupportedError.
        """
        if not (folder / "tokenizer.json").is_file():
            raise SourceError(f"{folder} has no tokenizer.json.")
        settings = {
            key.removeprefix("hf."): cast("Mapping[str, object]", value)
            for key, value in metadata.items()
            if key.startswith("hf.") and isinstance(value, Mapping)
        }
        parts = library.read(folder, settings)
        return cls(parts.vocabulary, parts)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer of a model, whatever its files are."""
        if checkpoint.format == "hf":
            return cls.from_folder(checkpoint.metadata, checkpoint.path)
        return cls.from_gguf(checkpoint.metadata)

    # ------------------------------------------------------------- facts

    @property
    def vocab_size(self) -> int:
        """Number of tokens the file names (a model's output may be padded beyond)."""
        return len(self._vocab)

    @property
    def model(self) -> str:
        """GGUF's name of the scheme: "gpt2", "llama", …"""
        return self._vocab.model

    @property
    def bos(self) -> int | None:
        """Begin of sequence."""
        return self._vocab.bos

    @property
    def eos(self) -> int | None:
        """End of sequence, as the file has it."""
        return self._vocab.eos

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        return self._vocab.eos_ids

    @property
    def add_bos(self) -> bool:
        """Whether ``encode(add_special=True)`` begins with ``bos``."""
        return self._vocab.add_bos and self._vocab.bos is not None

    @property
    def add_eos(self) -> bool:
        """Whether ``encode(add_special=True)`` ends with ``eos``."""
        return self._vocab.add_eos and self._vocab.eos is not None

    def token_type(self, token: int) -> TokenType:
        """What a token is for. Raises RequestError for an id beyond the vocabulary."""
        self._check(token)
        kind = int(self._vocab.types[token])
        return TokenType(kind) if 1 <= kind <= 6 else TokenType.NORMAL

    def token_id(self, text: str) -> int | None:
        """The id of the token with exactly this text in the file, if there is one."""
        return self._vocab.ids.get(text)

    def token_text(self, token: int) -> str:
        """The token's text as the file has it. Raises RequestError beyond the vocabulary."""
        self._check(token)
        return self._vocab.texts[token]

    def markup(self, source: str) -> tuple[str, ...]:
        """Texts that mean more than themselves: all control tokens, and the user-defined ones
        that ``source`` (a chat template) names."""
        texts = self._vocab.texts
        out = [texts[i] for i in self.special_ids]
        user = self._vocab.of_type(TokenType.USER_DEFINED)
        named = [texts[i] for i in user if texts[i] in source]
        return tuple(out + [text for text in named if not text.isalnum() and text.strip()])

    # ------------------------------------------------------------ encode

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``.

        ``add_special`` puts the model's begin and end tokens around it where its file asks.
        ``parse_special`` reads the texts of control tokens as those tokens; user-defined
        tokens are part of the text's spelling and always read.
        """
        finder = self._all if parse_special else self._user
        return self._encode(finder.split(_well_formed(text)), add_special)

    def encode_segments(self, segments: Iterable[Segment], *, add_special: bool) -> list[int]:
        """Ids of joined segments: special tokens are read in the trusted ones only.

        What lies between special tokens is encoded in one go, across segments, so that
        untrusted text is encoded exactly as the ordinary text it is.
        """
        parts: list[str | int] = []
        for text, trusted in segments:
            known = _well_formed(text)
            for part in self._all.split(known) if trusted else [known]:
                if isinstance(part, str) and parts and isinstance(parts[-1], str):
                    parts[-1] += part
                elif part != "":
                    parts.append(part)
        return self._encode(parts, add_special)

    def at_least(self, text: str) -> int:
        """A lower bound of the tokens that ``text`` has, in no time: for refusing huge prompts."""
        if self._vocab.model in ("bert", "t5"):
            return 0  # a word of any length may be one unknown token
        if self._vocab.lstrip or self._vocab.rstrip:
            text = "".join(text.split())
        return -(-len(text) // self._longest)

    def _encode(self, parts: Sequence[str | int], add_special: bool) -> list[int]:
        vocab_ = self._vocab
        prefix = vocab_.model == "llama" and vocab_.add_space_prefix
        out: list[int] = []
        if add_special and vocab_.add_bos and vocab_.bos is not None:
            out.append(vocab_.bos)
        for i, part in enumerate(parts):
            if isinstance(part, int):
                out.append(part)
                continue
            plain = self._stripped(parts, i)
            if plain:  # plain text begins the whole or follows a special token
                if i > 0 and self._later is not None:
                    out += self._later.encode(plain)
                else:
                    out += self._plain(" " + plain if prefix else plain)
        if add_special:
            out += self._tail()
        return out

    def _tail(self) -> list[int]:
        vocab_ = self._vocab
        if vocab_.model == "bert":
            return [vocab_.sep] if vocab_.sep is not None else []
        return [vocab_.eos] if vocab_.add_eos and vocab_.eos is not None else []

    def _stripped(self, parts: Sequence[str | int], i: int) -> str:
        """Part ``i`` without the white space that its special neighbours swallow."""
        part = str(parts[i])
        if i > 0 and parts[i - 1] in self._vocab.rstrip:
            part = part.lstrip(" \t\n\v\f\r")
        if i + 1 < len(parts) and parts[i + 1] in self._vocab.lstrip:
            part = part.rstrip(" \t\n\v\f\r")
        return part

    def _plain(self, text: str) -> list[int]:
        if self._vocab.model == "llama":
            return self._encoder.encode(text.replace(" ", merge.SPACE))
        if self._escape:
            out: list[int] = []
            for line in _lines(text.replace(" ", merge.SPACE)):
                token = self._vocab.ids.get(line) if line[0] == "\n" else None
                out += [token] if token is not None else self._encoder.encode(line)
            return out
        return self._encoder.encode(text)

    # ------------------------------------------------------------ decode

    def piece(self, token: int) -> bytes:
        """The exact bytes a token stands for; b"" for an id beyond the vocabulary.

        Control tokens give their text; it is the caller who leaves them out.
        """
        try:
            piece = self._pieces[token]
        except IndexError:
            return b""
        if piece is None:
            piece = self._pieces[token] = self._spell(token) if token >= 0 else b""
        return piece

    def hidden(self, token: int) -> bool:
        """Whether ``skip_special`` leaves the token out."""
        return token in self._hidden

    def decode(
        self,
        ids: Sequence[int],
        skip_special: bool = False,
        *,
        continuation: bool = False,
    ) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        A SentencePiece text begins with a space that ``encode`` put there; it is taken off
        again, unless the text is a ``continuation`` of another. Nothing else is cleaned up.
        Raises RequestError for an id beyond the vocabulary.
        """
        for token in ids:
            self._check(token)
        shown = [i for i in ids if not (skip_special and i in self._hidden)]
        data = b"".join(map(self.piece, shown))
        if self.strips_start(shown[0] if shown else None) and not continuation:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def strips_start(self, first: int | None) -> bool:
        """Whether a text that begins with token ``first`` begins with a space of ``encode``'s."""
        return first is not None and first not in self._hidden and self._strips

    def _check(self, token: int) -> None:
        if not 0 <= token < len(self._vocab):
            raise RequestError(
                f"Token id {token} is not in the vocabulary of {len(self._vocab)} tokens."
            )

    def _spell(self, token: int) -> bytes:
        text, kind = self._vocab.texts[token], int(self._vocab.types[token])
        if kind == int(TokenType.BYTE) and len(text) == 6 and text.startswith("<0x"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError:
                return text.encode("utf-8", "surrogateescape")
        if kind != int(TokenType.NORMAL):
            return text.encode("utf-8", "surrogateescape")
        if self._spelling == "bytes":
            return bpe.spelled_bytes(text)
        return text.replace(merge.SPACE, " ").encode("utf-8", "surrogateescape")


def _spelling(vocabulary: Vocabulary) -> str:
    rule = vocabulary.pre
    return "bytes" if rule is not None and rule.kind == "bytes" else "spaces"


def _strips(vocabulary: Vocabulary) -> bool:
    return vocabulary.add_space_prefix or vocabulary.model == "bert"


def _encoder(vocabulary: Vocabulary) -> _Encoder:
    rule = vocabulary.pre
    if rule is not None and rule.kind in ("bytes", "words"):
        return bpe.BytePairEncoder(vocabulary, rule)
    if rule is not None:
        return merge.by_merges(vocabulary)
    if vocabulary.model == "llama":
        return merge.by_score(vocabulary)
    return (
        WordPieceEncoder(vocabulary) if vocabulary.model == "bert" else UnigramEncoder(vocabulary)
    )


def _lines(text: str) -> list[str]:
    """Runs of line ends and of everything else, in turn."""
    return re.findall(r"[^\n]+|\n+", text)


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
