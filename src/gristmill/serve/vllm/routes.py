"""vLLM's own routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.vllm import scores, server

Handler = Callable[[HttpRequest], Awaitable[Response]]

GET: tuple[tuple[str, Handler], ...] = (
    ("/load", server.load),
    ("/tokenizer_info", server.tokenizer_info),
    ("/server_info", server.server_info),
)
POST: tuple[tuple[str, Handler, type[BaseModel] | None], ...] = (
    ("/invocations", server.invocations, None),
    ("/reset_prefix_cache", server.reset_prefix_cache, None),
    ("/v1/load_lora_adapter", server.adapter, None),
    ("/v1/unload_lora_adapter", server.adapter, None),
    ("/pooling", scores.pooling, scores.PoolingFields),
    ("/score", scores.score, scores.ScoreFields),
    ("/v1/score", scores.score, scores.ScoreFields),
    *(
        (path, scores.rerank, scores.RerankFields)
        for path in (
            "/rerank",
            "/v1/rerank",
            "/v2/rerank",
            "/reranking",
            "/v1/reranking",
        )
    ),
)
