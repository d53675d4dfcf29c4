"""vLLM's routes on top of embeddings: pooled values, how alike two texts are, documents by that.

A model that generates has no head for scores: as vLLM does with embedding models, a score is the
cosine of two embeddings, from -1 to 1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.embedding import (
    EUCLIDEAN,
    F32,
    MAX_TEXTS,
    Embedded,
    EmbeddingFields,
    counted,
    embed,
    normalised,
    one_row,
    written,
)
from gristmill.serve.errors import JsonResponse
from gristmill.serve.fields import Fields, Flag, Short, Text, Whole
from gristmill.serve.limits import read_object
from gristmill.serve.protocol import Served
from gristmill.serve.run import new_id, now
from gristmill.serve.state import State


class PoolingFields(EmbeddingFields):
    """``/pooling``. ``task``: one row for a text, or one for each of its tokens."""

    task: Literal["embed", "token_embed"] | None = None


class ScoreFields(Fields):
    """``/score``: one text against several, or pairs."""

    model: Short | None = None
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1)] | None = None


class RerankFields(Fields):
    """``/rerank``, as Jina and Cohere have it; ``texts`` is TEI's name for the documents."""

    model: Short | None = None
    query: Text
    documents: Any = None
    texts: Any = None
    top_n: Annotated[Whole, Field(ge=0)] | None = None
    return_documents: Flag = True
    return_text: Flag = False
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1)] | None = None


async def pooling(http: HttpRequest) -> Response:
    """``/pooling``."""
    state: State = http.app.state.gristmill
    state.open()
    fields = PoolingFields.parse(await read_object(http, state.options.max_body_bytes))
    served, model = await state.acquire(http, fields.model)
    if fields.task == "embed":
        one_row(served, "The task 'embed'")
    each = fields.task == "token_embed"
    found = await embed(http, fields, served, model, pooling="each" if each else None)
    data: list[object] = []
    for at, got in enumerate(found):
        rows = normalised(got.rows, fields.embd_normalize, fields.dimensions)
        several = each or served.pooling == "each"
        value = [written(row, fields) for row in rows] if several else written(rows[0], fields)
        data.append({"index": at, "object": "pooling", "data": value})
    return JsonResponse(
        {
            "id": new_id("pool", fields),
            "object": "list",
            "created": now(),
            "model": model,
            "data": data,
            "usage": counted(found),
        }
    )


async def score(http: HttpRequest) -> Response:
    """``/score``."""
    state: State = http.app.state.gristmill
    state.open()
    fields = ScoreFields.parse(await read_object(http, state.options.max_body_bytes))
    first = _texts(fields.text_1 if fields.queries is None else fields.queries, "text_1")
    given = fields.documents if fields.text_2 is None else fields.text_2
    second = _texts(fields.items if given is None else given, "text_2")
    if len(first) not in (1, len(second)):
        raise RequestError(
            f"'text_1' has {len(first)} texts and 'text_2' {len(second)}; it must have one, or as "
            "many.",
            "text_1",
        )
    served, model = await state.acquire(http, fields.model)
    found, rows = await _rows(http, fields, served, model, [*first, *second])
    scores = (rows[: len(first)] * rows[len(first) :]).sum(axis=1)
    return JsonResponse(
        {
            "id": new_id("score"),
            "object": "list",
            "created": now(),
            "model": model,
            "data": [
                {"index": at, "object": "score", "score": float(value)}
                for at, value in enumerate(scores)
            ],
            "usage": counted(found),
        }
    )


async def rerank(http: HttpRequest) -> Response:
    """``/rerank`` of vLLM and llama-server: the best first."""
    state: State = http.app.state.gristmill
    state.open()
    fields = RerankFields.parse(await read_object(http, state.options.max_body_bytes))
    tei = fields.documents is None and fields.texts is not None
    name = "texts" if tei else "documents"
    documents = _texts(fields.texts if tei else fields.documents, name)
    served, model = await state.acquire(http, fields.model)
    found, rows = await _rows(http, fields, served, model, [fields.query, *documents])
    scores = [float(value) for value in rows[1:] @ rows[0]]
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    order = order[: fields.top_n] if fields.top_n else order
    if tei:
        text = fields.return_text
        return JsonResponse(
            [
                {"index": at, "score": scores[at], **({"text": documents[at]} if text else {})}
                for at in order
            ]
        )
    results: list[dict[str, object]] = []
    for at in order:
        result: dict[str, object] = {"index": at, "relevance_score": scores[at]}
        if fields.return_documents:
            result["document"] = {"text": documents[at]}
        results.append(result)
    return JsonResponse(
        {
            "id": new_id("rerank"),
            "object": "list",
            "model": model,
            "usage": counted(found),
            "results": results,
        }
    )


async def _rows(
    http: HttpRequest,
    fields: ScoreFields | RerankFields,
    served: Served,
    model: str,
    texts: list[str],
) -> tuple[list[Embedded], F32]:
    """The texts' embeddings, of length one, float32 [texts, width]."""
    one_row(served, "A score")
    asked = EmbeddingFields.parse(
        {"input": texts, "truncate_prompt_tokens": fields.truncate_prompt_tokens}
    )
    found = await embed(http, asked, served, model)
    return found, np.concatenate([normalised(each.rows, EUCLIDEAN) for each in found])


def _texts(value: object, name: str) -> list[str]:
    """One text or a list of them, each a string or ``{"text": …}``."""
    items: list[object] = value if isinstance(value, list) else [value]  # pyright: ignore
    if not 1 <= len(items) < MAX_TEXTS:
        raise RequestError(f"'{name}' must hold 1 to {MAX_TEXTS - 1} texts.", name)
    texts: list[str] = []
    for item in items:
        text = item.get("text") if isinstance(item, dict) else item  # pyright: ignore
        if not isinstance(text, str):
            raise RequestError(f"'{name}' must be a string or a list of strings.", name)
        texts.append(text)
    return texts
