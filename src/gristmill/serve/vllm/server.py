"""vLLM's routes about the server: its load, its tokenizer, its cache, adapters it has not."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message

import gristmill
from gristmill.errors import NotFoundError, RequestError
from gristmill.serve.errors import JsonResponse
from gristmill.serve.limits import parse_object, read_body
from gristmill.serve.openai.chat import chat_completions
from gristmill.serve.openai.completions import completions
from gristmill.serve.openai.embeddings import embeddings
from gristmill.serve.state import State
from gristmill.serve.vllm.scores import rerank, score


async def load(http: HttpRequest) -> Response:
    """How many requests are being answered or wait."""
    state: State = http.app.state.gristmill
    return JsonResponse({"server_load": len(state.bridge.tickets)})


async def invocations(http: HttpRequest) -> Response:
    """SageMaker's one route for all, told apart by a field that only one of them has."""
    state: State = http.app.state.gristmill
    state.open()
    data = await read_body(http, state.options.max_body_bytes)
    body = parse_object(data)
    if body.get("messages") is not None:
        return await chat_completions(_again(http, data))
    if body.get("prompt") is not None:
        return await completions(_again(http, data))
    if body.get("input") is not None:
        return await embeddings(_again(http, data))
    if body.get("text_1") is not None:
        return await score(_again(http, data))
    if body.get("query") is not None:
        return await rerank(_again(http, data))
    raise RequestError(
        "One of 'messages', 'prompt', 'input', 'text_1' or 'query' is needed.", "messages"
    )


def _again(http: HttpRequest, data: bytes) -> HttpRequest:
    """The same request, its body still to be read."""
    read = False

    async def receive() -> Message:
        nonlocal read
        if read:
            return await http.receive()
        read = True
        return {"type": "http.request", "body": data, "more_body": False}

    return HttpRequest(http.scope, receive)


async def adapter(http: HttpRequest) -> Response:
    """Adapters are neither loaded nor unloaded."""
    del http
    raise RequestError("LoRA adapters are not served by this version.", "lora_name")


async def tokenizer_info(http: HttpRequest) -> Response:
    """What the model's file says of its tokenizer, if the server was started to tell."""
    state: State = http.app.state.gristmill
    if not state.options.tokenizer_info:
        raise NotFoundError(
            "The tokenizer is shown by a server with --enable-tokenizer-info-endpoint."
        )
    served = state.ready()
    template = state.options.chat_template or served.props.get("chat_template", "")
    return JsonResponse(
        {
            "tokenizer_class": "gristmill",
            "vocab_size": served.tokenizer.vocab_size,
            "model_max_length": served.context,
            "bos_token": served.props.get("bos_token", ""),
            "eos_token": served.props.get("eos_token", ""),
            "eos_token_ids": sorted(served.tokenizer.eos_ids),
            "chat_template": template,
        }
    )


async def reset_prefix_cache(http: HttpRequest) -> Response:
    """Forgets all cached prefixes that nobody uses. Only in development mode."""
    state = _developing(http)
    slots = state.ready().slots
    if slots is not None:
        await asyncio.to_thread(slots.clear)
    return Response(status_code=200)


async def server_info(http: HttpRequest) -> Response:
    """What is served, and how. Only in development mode."""
    state = _developing(http)
    served, options = state.ready(), state.options
    config: dict[str, object] = {
        "model": served.names[0],
        "max_model_len": served.context,
        "max_num_seqs": None if served.slots is None else served.slots.count,
        "kv_cache_dtype": options.kv_dtype,
        "enable_prefix_caching": options.prefix_cache,
        "seed": options.seed,
    }
    return JsonResponse({"version": gristmill.__version__, "vllm_config": config})


def _developing(http: HttpRequest) -> State:
    state: State = http.app.state.gristmill
    if not state.options.dev_mode:
        raise NotFoundError(
            "This route is there in development mode only (VLLM_SERVER_DEV_MODE=1)."
        )
    return state
