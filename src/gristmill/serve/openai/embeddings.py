"""``POST /v1/embeddings``: OpenAI's body, and vLLM's with ``messages``."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.embedding import (
    EmbeddingFields,
    counted,
    embed,
    normalised,
    one_row,
    written,
)
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import read_object
from gristmill.serve.state import State


async def embeddings(http: HttpRequest) -> Response:
    """One embedding for each text."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_object(http, state.options.max_body_bytes)
    if "input" not in body and "content" in body:  # llama-server's name for it
        body["input"] = body["content"]
    fields = EmbeddingFields.parse(body)
    served, model = await state.acquire(http, fields.model)
    one_row(served, "/v1/embeddings")
    found = await embed(http, fields, served, model)
    rows = [normalised(each.rows, fields.embd_normalize, fields.dimensions)[0] for each in found]
    return JsonResponse(
        {
            "object": "list",
            "model": model,
            "data": [
                {"object": "embedding", "index": at, "embedding": written(row, fields)}
                for at, row in enumerate(rows)
            ],
            "usage": counted(found),
        }
    )
