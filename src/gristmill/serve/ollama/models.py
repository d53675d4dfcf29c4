"""``/api/tags``, ``/api/ps``, ``/api/show``: the models there are, and what they are."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

import gristmill
from gristmill.serve.errors import JsonResponse
from gristmill.serve.fields import Fields, Short
from gristmill.serve.host import LATEST, Entry, aside
from gristmill.serve.library import Facts
from gristmill.serve.limits import read_object
from gristmill.serve.ollama.lines import stamp
from gristmill.serve.state import State
from gristmill.text import reasoning

SPOKEN = "0.12.11"
"""The version of Ollama whose API this is: clients look at it before they use what is newer."""
NEVER = 2**33
"""Stands for "it stays": a moment in the year 2242."""


class ModelFields(Fields):
    """A body that names a model; older clients say ``name``."""

    model: Annotated[Short, Field(min_length=1)] | None = None
    name: Annotated[Short, Field(min_length=1)] | None = None

    @property
    def wanted(self) -> str:
        """The name given; empty for none."""
        return self.model or self.name or ""


async def root(_http: HttpRequest) -> Response:
    """What Ollama's clients look for to see whether a server is there."""
    return PlainTextResponse("Ollama is running")


async def version(_http: HttpRequest) -> Response:
    """The version of the API, with ours behind it."""
    return JsonResponse({"version": f"{SPOKEN}+gristmill.{gristmill.__version__}"})


async def tags(http: HttpRequest) -> Response:
    """Every model that can be asked for."""
    state: State = http.app.state.gristmill
    state.open()
    await state.host.refresh()
    found: list[dict[str, object]] = []
    for entry in state.host.entries:
        details = _details(entry, await facts(state, entry))
        found.extend(_card(entry, name, details) for name in entry.names)
    return JsonResponse({"models": found})


async def ps(http: HttpRequest) -> Response:
    """The models that are loaded."""
    state: State = http.app.state.gristmill
    state.open()
    found: list[dict[str, object]] = []
    for entry in state.host.entries:
        served = entry.served
        if served is None:
            continue
        expires = NEVER if entry.expires is None else entry.expires
        if entry.expires is None and entry.keep is not None and not entry.pinned:
            expires = time.time() + entry.keep  # in use: the time begins when that is over
        found.append(
            {
                **_card(entry, entry.names[0], _details(entry, await facts(state, entry))),
                "size": _count(served.meta.get("size")) or entry.held,
                "size_vram": 0,
                "expires_at": stamp(expires),
                "context_length": served.context,
            }
        )
    return JsonResponse({"models": found})


async def show(http: HttpRequest) -> Response:
    """What one model is."""
    state: State = http.app.state.gristmill
    state.open()
    fields = ModelFields.parse(await read_object(http, state.options.max_body_bytes))
    entry = await state.entry(fields.wanted)
    known = await facts(state, entry)
    template = known.template if known else ""
    served = entry.served
    if served is not None and state.options.chat_template is not None:
        template = state.options.chat_template
    return JsonResponse(
        {
            "license": known.license if known else "",
            "modelfile": f"FROM {entry.model.reference or entry.names[0]}\n",
            "parameters": _parameters(served.defaults if served else {}),
            "template": template,
            "details": _details(entry, known),
            "model_info": _info(known),
            "capabilities": _capabilities(template, known),
            "modified_at": stamp(_modified(entry)),
        }
    )


async def facts(state: State, entry: Entry) -> Facts | None:
    """What is known of a model: by its file, or else by itself once it is loaded."""
    library = state.library
    if library is not None and entry.model.path:
        found = await aside(lambda: library.facts(entry.model))
        if found is not None:
            return found
    if entry.served is None:
        return None
    meta = entry.served.meta
    return Facts(
        format="gguf",
        architecture=str(meta.get("architecture", "")),
        parameters=_count(meta.get("n_params")),
        encoding=str(meta.get("encoding", "")),
        context=_count(meta.get("n_ctx_train")) or entry.served.context,
        width=_count(meta.get("n_embd")) or None,
    )


def _card(entry: Entry, name: str, details: Mapping[str, object]) -> dict[str, object]:
    tagged = name if ":" in name else name + LATEST
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": stamp(_modified(entry)),
        "size": entry.model.size or _count(entry.served.meta.get("size") if entry.served else 0),
        "digest": digest(entry),
        "details": details,
    }


def digest(entry: Entry) -> str:
    """An id of the model as it lies here: not a hash of its content, which would take long."""
    model = entry.model
    text = f"{model.reference}\n{model.path}\n{model.size}\n{model.modified}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _modified(entry: Entry) -> float:
    return entry.model.modified or (entry.served.created if entry.served else 0)


def _details(_entry: Entry, known: Facts | None) -> dict[str, object]:
    if known is None:
        return {"parent_model": "", "format": "", "family": "", "families": None,
                "parameter_size": "", "quantization_level": ""}  # fmt: skip
    return {
        "parent_model": "",
        "format": known.format,
        "family": known.architecture,
        "families": [known.architecture],
        "parameter_size": people(known.parameters),
        "quantization_level": known.encoding,
    }


def people(parameters: int) -> str:
    """A number of weights for people: "1.2B"."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= limit:
            return f"{parameters / limit:.4g}{unit}" if parameters < 1e12 else "1000B+"
    return str(parameters)


def _info(known: Facts | None) -> dict[str, object]:
    if known is None:
        return {}
    arch = known.architecture
    info = dict(known.metadata)
    info.setdefault("general.architecture", arch)
    info["general.parameter_count"] = known.parameters
    if known.context is not None:
        info.setdefault(f"{arch}.context_length", known.context)
    if known.width is not None:
        info.setdefault(f"{arch}.embedding_length", known.width)
    return info


def _parameters(defaults: Mapping[str, float | int]) -> str:
    """The sampling values that the model's file suggests, as a Modelfile would."""
    names = {"repetition_penalty": "repeat_penalty"}
    return "\n".join(f"{names.get(name, name):<31}{value:g}" for name, value in defaults.items())


def _capabilities(template: str, known: Facts | None) -> list[str]:
    found = ["completion"]
    if known is not None and known.infill:
        found.append("insert")
    if "tools" in template:
        found.append("tools")
    if template and reasoning.detect(template) is not None:
        found.append("thinking")
    return found


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
