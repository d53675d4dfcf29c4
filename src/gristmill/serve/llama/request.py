"""``/completion``'s body: its fields, their defaults, and the job they make.

A body is translated into the fields that all raw prompts have (``completion_request``). What is
left out has llama-server's default, unless the model's file suggests another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field
from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.serve.completion_request import MAX_PROMPTS, CompletionFields, completion_job
from gristmill.serve.fields import Flag, Whole
from gristmill.serve.mixed import is_id, mixed
from gristmill.serve.protocol import Served
from gristmill.serve.requests import MAX_N, refuse_unsupported
from gristmill.serve.run import Job, new_id
from gristmill.serve.sampling_fields import MAX_PROBS
from gristmill.serve.state import State

MAX_PATHS = 256
RANDOM_SEED = 2**32 - 1
"""llama-server's way to write "no seed"."""

DEFAULTS: Mapping[str, float | int] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_last_n": 64,
}
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
_RENAMED = {"n_cmpl": "n", "n_probs": "logprobs"}


def _paths(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError("must be a list of strings")
    return value  # pyright: ignore[reportUnknownVariableType]


class NativeFields(CompletionFields):
    """The body, translated. ``n_cache_reuse`` changes nothing: what can be reused always is."""

    n: Annotated[Whole, Field(ge=1, le=MAX_N)] = 1
    logprobs: Annotated[Whole, Field(ge=1, le=MAX_PROBS)] | None = None
    return_tokens: Flag = False
    response_fields: Annotated[
        list[str], BeforeValidator(_paths), Field(max_length=MAX_PATHS, default_factory=list)
    ]
    sse_ping_interval: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    n_cache_reuse: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    lora: Annotated[list[Any], Field(max_length=256, default_factory=list)]


class CompletionBody(NativeFields):
    """The body as it is sent, for ``/openapi.json``."""

    n_cmpl: Whole | None = None


def parse_native(body: Mapping[str, object], served: Served) -> NativeFields:
    """The checked fields of a body. Raises RequestError."""
    found = {key: value for key, value in body.items() if value is not None}
    if "prompt" not in found:
        raise RequestError("'prompt' is missing.", "prompt")
    limits = [found.pop(name) for name in _LIMITS if name in found]
    if limits and limits[0] != -1:
        found["max_tokens"] = limits[0]
    for theirs, ours in _RENAMED.items():
        if theirs in found:
            found[ours] = found.pop(theirs)
    if found.get("logprobs") == 0 or found.get("logprobs") is False:
        del found["logprobs"]
    if found.get("echo"):
        raise RequestError("'echo' belongs to /v1/completions.", "echo")
    if found.get("grammar") and "json_schema" in found:
        del found["json_schema"]  # there as here, a grammar goes before a schema
    _soften(found)
    for name, value in DEFAULTS.items():
        if name not in served.defaults:
            found.setdefault(name, value)
    refuse_unsupported(found)
    fields = NativeFields.parse(found)
    if fields.lora:
        raise RequestError("'lora' names an adapter; this server has none.", "lora")
    return fields


def _soften(found: dict[str, object]) -> None:
    """Values that llama-server takes and reads its own way."""
    temperature, top_k = found.get("temperature"), found.get("top_k")
    if isinstance(temperature, int | float) and not isinstance(temperature, bool):
        found["temperature"] = max(0.0, temperature)
    if isinstance(top_k, int) and not isinstance(top_k, bool):
        found["top_k"] = max(0, top_k)
    if found.get("seed") in (RANDOM_SEED, -1):
        del found["seed"]
    stop = found.get("stop")
    if isinstance(stop, list):
        found["stop"] = [each for each in cast("list[object]", stop) if each != ""]
    elif stop == "":
        del found["stop"]


async def native_job(http: HttpRequest, body: Mapping[str, object]) -> Job:
    """Everything the engine must be told. Raises NotFoundError, OverloadError, RequestError."""
    state: State = http.app.state.gristmill
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError("'model' must be a string.", "model")
    served, _ = await state.acquire(http, name)
    fields = parse_native(body, served)

    def tokenise(prompt: object) -> list[list[int]]:
        return tokenised(prompt, served, fields)

    ids = await state.in_worker(tokenise, fields.prompt)
    translated = fields.model_copy(update={"prompt": ids})
    return await completion_job(http, translated, new_id("cmpl", fields))


def tokenised(prompt: object, served: Served, fields: NativeFields) -> list[list[int]]:
    """llama-server's forms of a prompt: a text; a list of ids and texts; ``{prompt_string}``; a
    list of any of those, if there is no number in it. One list of ids for each prompt."""
    if not isinstance(prompt, list):
        return [_one(prompt, served, fields)]
    items = cast("list[object]", prompt)
    if not items:
        raise RequestError("'prompt' is an empty list.", "prompt")
    if any(is_id(item) for item in items):
        return [_one(items, served, fields)]
    if len(items) > MAX_PROMPTS:
        raise RequestError(f"'prompt' may hold at most {MAX_PROMPTS} prompts.", "prompt")
    return [_one(item, served, fields) for item in items]


def _one(prompt: object, served: Served, fields: NativeFields) -> list[int]:
    if isinstance(prompt, dict):
        wrapped = cast("dict[str, object]", prompt)
        if wrapped.get("multimodal_data"):
            raise RequestError(
                "'multimodal_data' needs a model that sees or hears; this one reads text.", "prompt"
            )
        prompt = wrapped.get("prompt_string")
    ids = mixed(
        prompt,
        served.tokenizer,
        add_special=fields.add_special_tokens,
        parse_special=True,
        param="prompt",
        most=served.context,
    )
    if not ids:
        raise RequestError("'prompt' is empty, and this model has no start token.", "prompt")
    return ids
