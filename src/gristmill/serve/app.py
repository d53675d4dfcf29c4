"""The ASGI app: routes in one table, and the layers every request passes.

From the outside in: id, date and log, unexpected errors, CORS (only if origins are allowed),
the API key, the router. The key's layer knows no routes, so none can be forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import gristmill
from gristmill.serve import errors, openapi, status, tokens
from gristmill.serve.anthropic import routes as anthropic
from gristmill.serve.anthropic.events import error_form
from gristmill.serve.anthropic.request import CountFields, MessagesFields
from gristmill.serve.auth import ApiKey
from gristmill.serve.chat_request import ChatFields
from gristmill.serve.completion_request import CompletionFields
from gristmill.serve.embedding import EmbeddingFields
from gristmill.serve.exchange import Exchanges
from gristmill.serve.http_metrics import HttpMetrics
from gristmill.serve.llama import routes as llama
from gristmill.serve.ollama import routes as ollama
from gristmill.serve.openai import chat, completions, embeddings, models
from gristmill.serve.outside import Outside
from gristmill.serve.responses import routes as responses
from gristmill.serve.responses.store import Store
from gristmill.serve.state import State
from gristmill.serve.vllm import routes as vllm

Handler = Callable[[HttpRequest], Awaitable[Response]]

_GET: tuple[tuple[str, Handler], ...] = (
    ("/health", status.health),
    ("/v1/health", status.health),
    ("/ping", status.health),
    ("/version", status.version),
    ("/metrics", status.metrics),
    ("/v1/models", models.list_models),
    ("/models", models.list_models),
    ("/v1/models/{model_id:path}", models.show_model),
    *responses.GET,
    *llama.GET,
    *vllm.GET,
    *ollama.GET,
)
_POST: tuple[tuple[str, Handler, type[BaseModel] | None], ...] = (
    ("/v1/chat/completions", chat.chat_completions, ChatFields),
    ("/chat/completions", chat.chat_completions, ChatFields),
    ("/v1/completions", completions.completions, CompletionFields),
    ("/v1/embeddings", embeddings.embeddings, EmbeddingFields),
    ("/v1/messages", anthropic.messages, MessagesFields),
    ("/v1/messages/count_tokens", anthropic.count_tokens, CountFields),
    ("/tokenize", tokens.tokenize, tokens.TokenizeFields),
    ("/detokenize", tokens.detokenize, tokens.DetokenizeFields),
    ("/ping", status.health, None),
    *responses.POST,
    *llama.POST,
    *vllm.POST,
    *ollama.POST,
)
errors.FORMS["/v1/messages"] = error_form
errors.FORMS[ollama.PREFIX] = ollama.error_form


def create_app(state: State) -> FastAPI:
    """The app around ``state``; it answers 503 until ``state.served`` is there."""
    counted = HttpMetrics(state.metrics.registry)
    layers = [
        Middleware(Outside, options=state.options, metrics=counted),
        Middleware(errors.Unexpected),
    ]
    if state.options.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(state.options.allowed_origins),
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    if state.options.api_keys:
        layers.append(Middleware(ApiKey, keys=state.keys))
    layers.append(Middleware(Exchanges))
    app = FastAPI(
        title="gristmill",
        version=gristmill.__version__,
        docs_url=None,
        redoc_url=None,
        middleware=layers,
    )
    app.state.gristmill = state
    app.state.responses = Store(state.options.response_store_bytes)
    errors.install(app)
    for path, handler in _GET:
        app.add_api_route(path, handler, methods=["GET"], response_model=None)
        app.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)
    for path, handler in (*responses.DELETE, *ollama.DELETE):
        app.add_api_route(path, handler, methods=["DELETE"], response_model=None)
    for path, handler, _ in _POST:
        app.add_api_route(path, handler, methods=["POST"], response_model=None)
    bodies = {path: body for path, _, body in _POST}
    keyed = bool(state.options.api_keys)
    app.openapi = partial(openapi.document, app, bodies, state.options.root_path, keyed)
    return app
