"""llama-server's ``/embedding``: a list of {index, embedding}, a list of rows each."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.embedding import EmbeddingFields, embed, normalised, written
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import read_object
from gristmill.serve.state import State


async def embedding(http: HttpRequest) -> Response:
    """``content`` (or ``input``) as a text, ids, or a list of either. Rows of tokens that were
    not pooled are not normalised."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    name = "content" if "content" in body or "input" not in body else "input"
    fields = EmbeddingFields.parse({**body, "input": body.get(name)})
    served, model = await state.acquire(http, fields.model)
    found = await embed(http, fields, served, model, name=name)
    norm = -1 if served.pooling == "each" else fields.embd_normalize
    answers: list[object] = []
    for at, each in enumerate(found):
        rows = normalised(each.rows, norm, fields.dimensions)
        answers.append({"index": at, "embedding": [written(row, fields) for row in rows]})
    return JsonResponse(answers)
