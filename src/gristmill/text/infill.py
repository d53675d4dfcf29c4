"""Filling in the middle: prompts that ask for what stands between a prefix and a suffix.

A model that was trained for it has tokens for the three parts; some have two more that set whole
files before them as context (the layout is Qwen2.5-Coder's, arXiv 2409.12186, section 3.2.2).
Which tokens they are is said by the file's metadata (GGUF's ``tokenizer.ggml.fim_*``), or by
their texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

PREFIX_TEXTS = (
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>",
)  # fmt: skip
SUFFIX_TEXTS = (
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>",
)  # fmt: skip
MIDDLE_TEXTS = (
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
    "<|code_middle|>", "<|middle|>",
)  # fmt: skip
REPO_TEXTS = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
FILE_TEXTS = ("<|file_sep|>",)

_PARTS = (
    ("pre", "prefix", PREFIX_TEXTS),
    ("suf", "suffix", SUFFIX_TEXTS),
    ("mid", "middle", MIDDLE_TEXTS),
)
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Between files, where the vocabulary has no token for it."""


class Tokens(Protocol):
    """What is needed of ``text.tokenizer.Tokenizer``."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        ...

    @property
    def bos(self) -> int | None:
        """Begin of sequence."""
        ...

    @property
    def add_bos(self) -> bool:
        """Whether prompts begin with it."""
        ...

    def token_id(self, text: str, /) -> int | None:
        """The id of a token by its text."""
        ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to ids."""
        ...


@dataclass(frozen=True)
class Infill:
    """The tokens, and how prompts are put together with them."""

    tokens: Tokens
    prefix: int
    suffix: int
    middle: int
    repo: int | None = None
    file: int | None = None

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The ids of ``before``, a gap, ``after``: what comes next belongs into the gap."""
        start = [self.tokens.bos] if self.tokens.add_bos and self.tokens.bos is not None else []
        return [*start, self.prefix, *before, self.suffix, *after, self.middle]

    def prompt_within(
        self,
        before: Sequence[int],
        after: Sequence[int],
        extra: Sequence[tuple[str, str]],
        window: int,
        room: int,
    ) -> list[int]:
        """llama-server's ``/infill``: the same, in at most ``window`` tokens, after as much of
        the ``extra`` files (name, text) as ``room`` tokens hold.

        Three quarters of the window are for the end of ``before``, the rest for the beginning of
        ``after``; files are dropped from the first on.
        """
        before = before[max(0, len(before) - 3 * (window // 4)) :]
        after = after[: max(0, window // 4 - 2)]
        context = self._files(extra)
        context = context[max(0, len(context) - max(0, room)) :]
        return [*context, *self.prompt(before, after)]

    def _files(self, extra: Sequence[tuple[str, str]]) -> list[int]:
        made: list[int] = []
        if self.repo is not None:
            made += [self.repo, *self._text("myproject\n")]
        for name, text in extra:
            head = _SNIPPET if self.file is None else f"{name}\n"
            made += [] if self.file is None else [self.file]
            made += [*self._text(head), *self._text(text)]
        if self.file is not None:
            made += [self.file, *self._text("filename\n")]
        return made

    def _text(self, text: str) -> list[int]:
        return self.tokens.encode(text, add_special=False, parse_special=False)


def find_infill(tokens: Tokens, metadata: Mapping[str, object]) -> Infill | None:
    """The tokens of a vocabulary for filling in, None where one of the three is missing."""
    found: list[int] = []
    for short, long, texts in _PARTS:
        names = (f"fim_{short}_token_id", f"{long}_token_id")
        token = _named(tokens, metadata, names)
        token = _spelt(tokens, texts) if token is None else token
        if token is None:
            return None
        found.append(token)
    repo = _named(tokens, metadata, ("fim_rep_token_id",))
    file = _named(tokens, metadata, ("fim_sep_token_id",))
    return Infill(
        tokens,
        found[0],
        found[1],
        found[2],
        _spelt(tokens, REPO_TEXTS) if repo is None else repo,
        _spelt(tokens, FILE_TEXTS) if file is None else file,
    )


def _named(tokens: Tokens, metadata: Mapping[str, object], names: Sequence[str]) -> int | None:
    for name in names:
        value = metadata.get(f"tokenizer.ggml.{name}")
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if 0 <= value < tokens.vocab_size:
            return value
    return None


def _spelt(tokens: Tokens, texts: Sequence[str]) -> int | None:
    return next((token for text in texts if (token := tokens.token_id(text)) is not None), None)
