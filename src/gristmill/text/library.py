"""tokenizer.json: encoders of Hugging Face's ``tokenizers``, run by that library itself.

Its added tokens are taken out before: the tokenizer cuts a text at special tokens, as for every
other kind of file, and only plain text comes to the library. What it would put around a text is
found by asking it once. Format: the ``tokenizers`` library's own JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from tokenizers import Tokenizer as Library

from gristmill.errors import FormatError, SourceError, UnsupportedError
from gristmill.text.vocab import MAX_TOKENS, TokenType, Vocabulary, find_ends

MAX_JSON = 256 << 20
_LONG_TEXT = 1 << 14


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tokenizer.json comes to."""

    vocabulary: Vocabulary
    encoder: LibraryEncoder
    later: LibraryEncoder | None
    """Encodes what does not begin the text, where that makes a difference."""
    spelling: str
    """How texts of tokens spell bytes: "bytes" (GPT-2's alphabet) or "spaces" (▁, <0xNN>)."""
    strips_start: bool
    """Whether a decoded text begins with a space that is not the text's."""


class LibraryEncoder:
    """Plain text to ids."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def encode(self, text: str) -> list[int]:
        """Ids of plain text (no lone surrogates)."""
        if len(text) > _LONG_TEXT:  # this call lets go of the interpreter's lock
            return self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return self._library.encode(text, add_special_tokens=False).ids


def read(folder: Path, settings: Mapping[str, Mapping[str, object]]) -> Parts:
    """Read ``tokenizer.json`` of a model folder.

    ``settings`` are the folder's other JSON files by name without ending ("tokenizer_config",
    "generation_config", "config"). Raises SourceError, FormatError, UnsupportedError.
    """
    path = folder / "tokenizer.json"
    tree = _json(path)
    added = _added(path, tree)
    whole = _library(path, tree)
    plain = _library(path, {**tree, "added_tokens": [], "post_processor": None})
    texts, types = _texts(path, tree, added)
    ids = {text: i for i, text in enumerate(texts)}
    before, after = _around(whole)
    spelling = "bytes" if '"ByteLevel"' in json.dumps(_decoding(tree)) else "spaces"
    vocabulary = Vocabulary(
        model="library",
        pre=None,
        texts=texts,
        types=types,
        scores=[],
        ids=ids,
        merges=[],
        bos=named(settings, "bos_token", ids),
        eos=named(settings, "eos_token", ids),
        unk=named(settings, "unk_token", ids),
        sep=None,
        add_bos=False,
        add_eos=False,
        add_sep=False,
        add_space_prefix=False,
        remove_extra_whitespaces=False,
        lowercase=False,
        strip_accents=False,
        charsmap=b"",
        lstrip=frozenset(i for i, token in added.items() if token.get("lstrip") is True),
        rstrip=frozenset(i for i, token in added.items() if token.get("rstrip") is True),
    )
    _mark_around(path, vocabulary, before, after)
    find_ends(vocabulary, _end_ids(settings, len(texts)))
    strips = spelling == "spaces" and '"Strip"' in json.dumps(tree.get("decoder"))
    later = _without_first_space(tree)
    return Parts(
        vocabulary,
        LibraryEncoder(plain),
        None if later is None else LibraryEncoder(_library(path, later)),
        spelling,
        strips,
    )


# -------------------------------------------------------------------- file


def _json(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > MAX_JSON:
            raise FormatError(f"{path} has more than {MAX_JSON >> 20} MiB.")
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not sound JSON: {str(error)[:120]}.") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path} does not hold a JSON object.")
    return cast("dict[str, object]", value)


def _library(path: Path, tree: Mapping[str, object]) -> Library:
    try:
        library = Library.from_str(json.dumps({**tree, "truncation": None, "padding": None}))
    except Exception as error:  # the library raises bare Exceptions
        raise FormatError(f"{path} is no tokenizer the library reads: {error}") from error
    return library


def _added(path: Path, tree: Mapping[str, object]) -> dict[int, Mapping[str, object]]:
    """The added tokens by id."""
    found: dict[int, Mapping[str, object]] = {}
    for item in cast("Sequence[object]", tree.get("added_tokens") or ()):
        token = cast("Mapping[str, object]", item if isinstance(item, Mapping) else {})
        number, content = token.get("id"), token.get("content")
        if (
            not isinstance(number, int)
            or not 0 <= number < MAX_TOKENS
            or not isinstance(content, str)
            or not content
        ):
            raise FormatError(f"{path}: an added token has no sound id and content.")
        found[number] = token
    return found


def _texts(
    path: Path, tree: Mapping[str, object], added: Mapping[int, Mapping[str, object]]
) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Every token's text and type; ids that nothing names are unused."""
    named = _model_tokens(path, tree)
    named |= {i: str(token["content"]) for i, token in added.items()}
    if not named:
        raise FormatError(f"{path} has no tokens.")
    count = max(named) + 1
    if count > MAX_TOKENS:
        raise FormatError(f"{path} has token ids up to {count - 1}; {MAX_TOKENS} are allowed.")
    texts = [named.get(i) or f"[EMPTY_{i}]" for i in range(count)]
    types = np.full(count, int(TokenType.NORMAL), np.int64)
    for i, text in enumerate(texts):
        if i not in named:
            types[i] = TokenType.UNUSED
        elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[i] = TokenType.BYTE
    for i, token in added.items():
        special = token.get("special") is True
        types[i] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    return texts, types


def _model_tokens(path: Path, tree: Mapping[str, object]) -> dict[int, str]:
    """The model's own vocabulary: an object of ids (BPE, WordPiece), or a list (Unigram)."""
    model = tree.get("model")
    vocab = cast("Mapping[str, object]", model).get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, Mapping):
        found: dict[int, str] = {}
        for text, number in cast("Mapping[str, object]", vocab).items():
            if not isinstance(number, int) or not 0 <= number < MAX_TOKENS:
                raise FormatError(f"{path}: the token {text!r:.60} has the id {number!r:.60}.")
            found[number] = text
        return found
    if isinstance(vocab, list):
        entries = cast("list[object]", vocab)
        return {
            i: str(cast("Sequence[object]", entry)[0])
            for i, entry in enumerate(entries)
            if isinstance(entry, list) and entry
        }
    raise UnsupportedError(f"{path} has a model without a vocabulary that is known.")


def _without_first_space(tree: Mapping[str, object]) -> dict[str, object] | None:
    """The tree for texts that are not the first, None where it is the same.

    A Metaspace of scheme "first" puts a space before the text's own beginning only.
    """
    changed = False

    def walk(node: object) -> object:
        nonlocal changed
        if isinstance(node, list):
            return [walk(item) for item in cast("list[object]", node)]
        if not isinstance(node, Mapping):
            return node
        fields = {k: walk(v) for k, v in cast("Mapping[str, object]", node).items()}
        if fields.get("type") == "Metaspace" and fields.get("prepend_scheme") == "first":
            changed = True
            fields["prepend_scheme"] = "never"
        return fields

    walked = walk(tree.get("pre_tokenizer"))
    plain: dict[str, object] = dict(tree)
    plain |= {"added_tokens": [], "post_processor": None, "pre_tokenizer": walked}
    return plain if changed else None


def _decoding(tree: Mapping[str, object]) -> list[object]:
    return [tree.get("decoder"), tree.get("pre_tokenizer")]


# ------------------------------------------------------------ special tokens


def _around(library: Library) -> tuple[list[int], list[int]]:
    """The ids that the library puts before and after a text."""
    bare = library.encode("a", add_special_tokens=False).ids
    full = library.encode("a", add_special_tokens=True).ids
    for at in range(len(full) - len(bare) + 1):
        if full[at : at + len(bare)] == bare:
            return full[:at], full[at + len(bare) :]
    return [], []


def _mark_around(path: Path, vocabulary: Vocabulary, before: list[int], after: list[int]) -> None:
    """Makes them the vocabulary's begin and end, which it has one each of."""
    if len(before) > 1 or len(after) > 1:
        raise UnsupportedError(
            f"{path} puts {len(before)} tokens before and {len(after)} after every text; one "
            "each is served."
        )
    if before:
        vocabulary.bos, vocabulary.add_bos = before[0], True
    if after:
        vocabulary.eos, vocabulary.add_eos = after[0], True


def named(
    settings: Mapping[str, Mapping[str, object]], key: str, ids: Mapping[str, int]
) -> int | None:
    """A special token that a JSON file names by its text, plain or in an object."""
    for name in ("tokenizer_config", "special_tokens_map"):
        value = settings.get(name, {}).get(key)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, object]", value).get("content")
        if isinstance(value, str) and value in ids:
            return ids[value]
    number = settings.get("config", {}).get(f"{key}_id")
    return number if isinstance(number, int) and number in ids.values() else None


def _end_ids(settings: Mapping[str, Mapping[str, object]], count: int) -> frozenset[int]:
    """Every id that a JSON file says ends an answer."""
    found: set[int] = set()
    for name in ("generation_config", "config"):
        value = settings.get(name, {}).get("eos_token_id")
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        found |= {i for i in items if isinstance(i, int) and 0 <= i < count}
    return frozenset(found)
