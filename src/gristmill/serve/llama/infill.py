"""``POST /infill``: what stands between a prefix and a suffix, for models made for it.

``prompt`` goes on from the prefix. The prompt is fitted into the context: the end of the prefix
and the beginning of the suffix are kept, and as much of the extra files as there is room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.fields import Fields, Text
from gristmill.serve.limits import read_object
from gristmill.serve.llama.completion import respond
from gristmill.serve.llama.errors import NotOfferedError
from gristmill.serve.protocol import Served
from gristmill.serve.state import State

WINDOW = 2048
"""Most tokens of prefix and suffix together."""
LEAST_ANSWER = 256
MAX_EXTRA = 1024
_OURS = frozenset({"input_prefix", "input_suffix", "input_extra", "prompt"})


class InfillFields(Fields):
    """What the body has besides ``/completion``'s fields."""

    input_prefix: Text
    input_suffix: Text
    input_extra: Any = None
    prompt: Text = ""


async def infill(http: HttpRequest) -> Response:
    """Fills the gap. 501 for a model without the tokens for it."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    fields = InfillFields.parse(body)
    extra = extras(fields.input_extra)
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError("'model' must be a string.", "model")
    served, _ = await state.acquire(http, name)
    limits = [body[key] for key in ("n_predict", "max_tokens") if body.get(key) is not None]
    limit = limits[0] if limits and isinstance(limits[0], int) else 0

    def work(fields: InfillFields) -> list[int]:
        return prompt_ids(fields, extra, served, limit)

    ids = await state.in_worker(work, fields)
    rest = {key: value for key, value in body.items() if key not in _OURS}
    return await respond(http, {**rest, "prompt": ids})


def prompt_ids(
    fields: InfillFields, extra: Sequence[tuple[str, str]], served: Served, limit: int
) -> list[int]:
    """The prompt, fitted into the context with room for ``limit`` tokens of an answer."""
    if served.infill is None:
        raise NotOfferedError("This model has no tokens for filling in a middle.")
    window = min(WINDOW, served.context // 2)
    room = served.context - window - max(2 * limit, LEAST_ANSWER)

    def ids(text: str, most: int, end: bool) -> list[int]:
        # A token has a byte at least, and a file may be long: no more is read than can be kept.
        cut = text[-64 * most :] if end else text[: 64 * most]
        return served.tokenizer.encode(cut, add_special=False, parse_special=False)

    before = ids(fields.input_prefix, window, True) + ids(fields.prompt, window, True)
    after = ids(fields.input_suffix, window, False)
    kept = _last(extra, 64 * max(room, 0))
    return served.infill.prompt_within(before, after, kept, window, room)


def _last(extra: Sequence[tuple[str, str]], characters: int) -> list[tuple[str, str]]:
    """The last files, of no more characters than could ever be kept."""
    kept: list[tuple[str, str]] = []
    for name, text in reversed(extra):
        if characters <= 0:
            break
        kept.append((name, text[-characters:]))
        characters -= len(text)
    return kept[::-1]


def extras(value: object) -> list[tuple[str, str]]:
    """``input_extra``: ``[{"filename": …, "text": …}]``. Raises RequestError."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError("'input_extra' must be a list.", "input_extra")
    items = cast("list[object]", value)
    if len(items) > MAX_EXTRA:
        raise RequestError(f"'input_extra' may hold at most {MAX_EXTRA} files.", "input_extra")
    found: list[tuple[str, str]] = []
    for item in items:
        entry = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name, text = entry.get("filename", "tmp"), entry.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise RequestError(
                "'input_extra' must hold objects with a 'text' and a 'filename', both strings.",
                "input_extra",
            )
        found.append((name, text))
    return found
