"""``GET /v1/models`` and ``/v1/models/{id}``: OpenAI's fields, and Anthropic's beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import NotFoundError
from gristmill.serve.errors import JsonResponse
from gristmill.serve.protocol import Served
from gristmill.serve.state import State


def _card(served: Served, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "gristmill",
        "root": served.names[0],
        "parent": None,
        "max_model_len": served.context,
        "meta": {
            "n_vocab": served.tokenizer.vocab_size,
            "n_ctx": served.context,
            **served.meta,
        },
        **anthropic_card(name, served.created, served.context),
    }


def anthropic_card(name: str, created: int, context: int) -> dict[str, object]:
    """What Anthropic's clients read of a model."""
    return {
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def page(cards: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """All cards on one page, for both kinds of clients."""
    return {
        "object": "list",
        "data": list(cards),
        "has_more": False,
        "first_id": cards[0]["id"] if cards else None,
        "last_id": cards[-1]["id"] if cards else None,
    }


async def list_models(http: HttpRequest) -> Response:
    """Every name the model is served under."""
    state: State = http.app.state.gristmill
    served = state.ready()
    return JsonResponse(page([_card(served, name) for name in served.names]))


async def show_model(http: HttpRequest) -> Response:
    """One model, 404 for a name not served."""
    state: State = http.app.state.gristmill
    served = state.ready()
    name: str = http.path_params["model_id"]
    if name not in served.names:
        known = ", ".join(f"'{each}'" for each in served.names)
        raise NotFoundError(
            f"The model '{name[:200]}' is not served here; served: {known}.", "model"
        )
    return JsonResponse(_card(served, name))
