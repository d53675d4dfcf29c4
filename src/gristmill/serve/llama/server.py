"""llama-server's routes about the server: ``/props``, ``/lora-adapters``."""

from __future__ import annotations

import json

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import RequestError
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import read_body
from gristmill.serve.llama.errors import NotOfferedError
from gristmill.serve.llama.settings import default_settings
from gristmill.serve.run import FINGERPRINT
from gristmill.serve.state import State


async def props(http: HttpRequest) -> Response:
    """What the server is and how it generates by default."""
    state: State = http.app.state.gristmill
    name = http.query_params.get("model")
    served, _ = state.model(name)
    options = state.options
    told = dict(served.props)
    if options.chat_template is not None:
        told["chat_template"] = options.chat_template
    body: dict[str, object] = {
        "default_generation_settings": {
            "params": default_settings(served),
            "n_ctx": served.context,
        },
        "total_slots": 1 if served.slots is None else served.slots.count,
        "model_alias": served.names[0],
        "model_ftype": "",
        "model_path": "",
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": options.slots,
        "endpoint_props": options.props,
        "endpoint_metrics": True,
        "ui": False,
        "chat_template": "",
        "chat_template_caps": {},
        "bos_token": "",
        "eos_token": "",
        "build_info": FINGERPRINT,
        "is_sleeping": False,
    }
    return JsonResponse(body | told)


async def change_props(http: HttpRequest) -> Response:
    """Nothing can be changed yet, here or there; the answer says that it was understood."""
    state: State = http.app.state.gristmill
    if not state.options.props:
        raise NotOfferedError("Properties are changed by a server with --props only.")
    await read_body(http, state.options.max_body_bytes)
    return JsonResponse({"success": True})


async def adapters(http: HttpRequest) -> Response:
    """No adapters."""
    state: State = http.app.state.gristmill
    state.open()
    return JsonResponse([])


async def change_adapters(http: HttpRequest) -> Response:
    """An empty list is what there is; any other names an adapter that is not there."""
    state: State = http.app.state.gristmill
    state.open()
    body = await read_body(http, state.options.max_body_bytes)
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("The body is not valid JSON.") from None
    if not isinstance(value, list):
        raise RequestError("The body must be a list of adapters.")
    if value:
        raise RequestError("There is no adapter to scale: this server has none.")
    return JsonResponse({"success": True})
