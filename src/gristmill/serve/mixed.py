"""Texts and token ids in one list, as llama-server takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, cast

from gristmill.errors import RequestError
from gristmill.serve.protocol import Tokenizer
from gristmill.serve.requests import refuse_hopeless


def mixed(
    value: object,
    tokenizer: Tokenizer,
    *,
    add_special: bool,
    parse_special: bool,
    param: str,
    most: int | None = None,
) -> list[int]:
    """The ids of a text, or of a list of texts and ids; only a first text gets a start token.

    Raises: RequestError that names ``param``, ContextError for a text that must be of more than
    ``most`` tokens.
    """
    parts: Sequence[object] = cast("list[object]", value) if isinstance(value, list) else [value]
    ids: list[int] = []
    for at, part in enumerate(parts):
        if isinstance(part, str):
            refuse_hopeless(part, tokenizer, most)
            ids += tokenizer.encode(
                part, add_special=add_special and at == 0, parse_special=parse_special
            )
        elif not isinstance(value, list) or not is_id(part):
            raise RequestError(
                f"'{param}' must be a text, or a list of texts and token ids.", param
            )
        elif not 0 <= part < tokenizer.vocab_size:
            raise RequestError(
                f"'{param}' must hold token ids from 0 to {tokenizer.vocab_size - 1}.", param
            )
        else:
            ids.append(part)
    return ids


def is_id(value: object) -> TypeGuard[int]:
    """Whether a JSON value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
