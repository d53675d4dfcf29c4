"""``GET /v1/models`` and ``/v1/models/{id}``: OpenAI's fields, and Anthropic's beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.serve.errors import JsonResponse
from gristmill.serve.host import Entry
from gristmill.serve.state import State


def _card(entry: Entry, name: str, state: State) -> dict[str, object]:
    """One name. What only a loaded model tells is null while it is not; ``status`` is that of
    llama-server's router."""
    served = entry.served
    created = served.created if served else int(entry.model.modified or state.started)
    status: dict[str, object] = {"value": entry.stage}
    if entry.stage == "loading":
        status["progress"] = round(entry.progress.fraction, 4)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "gristmill",
        "root": entry.names[0],
        "parent": None,
        "max_model_len": served.context if served else None,
        "status": status,
        "meta": served
        and {"n_vocab": served.tokenizer.vocab_size, "n_ctx": served.context, **served.meta},
        **anthropic_card(name, created, served.context if served else None),
    }


def anthropic_card(name: str, created: int, context: int | None) -> dict[str, object]:
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
    """Every name of every model, loaded or not."""
    state: State = http.app.state.gristmill
    state.open()
    await state.host.refresh()
    cards = [_card(entry, name, state) for entry in state.host.entries for name in entry.names]
    return JsonResponse(page(cards))


async def show_model(http: HttpRequest) -> Response:
    """One model, 404 for a name not served."""
    state: State = http.app.state.gristmill
    state.open()
    name: str = http.path_params["model_id"]
    entry = await state.host.look_up(name)
    return JsonResponse(_card(entry, name, state))
