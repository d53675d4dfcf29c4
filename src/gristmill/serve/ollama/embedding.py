"""``/api/embed`` (several texts, of length one) and ``/api/embeddings`` (one text, as it is)."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.embedding import (
    EUCLIDEAN,
    Embedded,
    EmbeddingFields,
    embed,
    normalised,
    one_row,
)
from gristmill.serve.errors import JsonResponse
from gristmill.serve.fields import Fields, Flag, Short, Text, Whole
from gristmill.serve.limits import read_object
from gristmill.serve.ollama.request import keep
from gristmill.serve.protocol import Served
from gristmill.serve.state import State


class EmbedFields(Fields):
    """The bodies of both routes."""

    model: Annotated[Short, Field(min_length=1)]
    input: Any = None
    prompt: Text = ""
    truncate: Flag = True
    dimensions: Annotated[Whole, Field(ge=1)] | None = None
    keep_alive: Any = None


async def several(http: HttpRequest) -> Response:
    """``/api/embed``. Without a text it only loads the model."""
    began = time.monotonic()
    fields, served = await _begin(http)
    loaded = time.monotonic()
    texts: object = fields.input or []
    items: list[object] = texts if isinstance(texts, list) else [texts]  # pyright: ignore
    if not all(isinstance(text, str) for text in items):
        raise RequestError("'input' must be a string or a list of strings.", "input")
    found = await _embed(http, fields, served, items) if items else []
    rows = [normalised(each.rows, EUCLIDEAN, fields.dimensions)[0].tolist() for each in found]
    return JsonResponse(
        {
            "model": fields.model,
            "embeddings": rows,
            "total_duration": int((time.monotonic() - began) * 1e9),
            "load_duration": int((loaded - began) * 1e9),
            "prompt_eval_count": sum(each.tokens for each in found),
        }
    )


async def one(http: HttpRequest) -> Response:
    """``/api/embeddings``. Without a text it only loads the model."""
    fields, served = await _begin(http)
    found = await _embed(http, fields, served, [fields.prompt]) if fields.prompt else []
    return JsonResponse({"embedding": found[0].rows[0].tolist() if found else []})


async def _begin(http: HttpRequest) -> tuple[EmbedFields, Served]:
    state: State = http.app.state.gristmill
    state.open()
    fields = EmbedFields.parse(await read_object(http, state.options.max_body_bytes))
    served, _ = await state.acquire(http, fields.model, keep(fields.keep_alive))
    one_row(served, "This route")
    return fields, served


async def _embed(
    http: HttpRequest, fields: EmbedFields, served: Served, texts: list[object]
) -> list[Embedded]:
    body: dict[str, object] = {"input": texts}
    if fields.truncate:
        body |= {"truncate_prompt_tokens": -1, "truncation_side": "right"}
    return await embed(http, EmbeddingFields.parse(body), served, fields.model)
