"""``/slots``: what runs, and what ran last; its cached tokens to a file and back.

A slot here is a number that an answer has while it runs (``engine/slots.py``); the cache itself
is shared by all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import FormatError, OverloadError, RequestError
from gristmill.serve.errors import JsonResponse
from gristmill.serve.fields import Fields, Text
from gristmill.serve.limits import read_object
from gristmill.serve.llama.errors import NotOfferedError
from gristmill.serve.llama.settings import sampling_settings
from gristmill.serve.protocol import Served, Slots
from gristmill.serve.state import State
from gristmill.types import SlotView

_FORBIDDEN = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
"""Separators, what some system or other reads as one, and what no name should hold."""
MAX_NAME = 200
"""Bytes; a temporary name beside it must fit as well."""


class SlotFields(Fields):
    """The body of a save or a restore."""

    filename: Text


async def show_slots(http: HttpRequest) -> Response:
    """All slots. 503 with ``?fail_on_no_slot=1`` while all are busy."""
    state: State = http.app.state.gristmill
    if not state.options.slots:
        raise NotOfferedError("This server was started with --no-slots.")
    served = state.ready()
    views = await asyncio.to_thread(_slots(served).views)
    if http.query_params.get("fail_on_no_slot") and all(view.busy for view in views):
        raise OverloadError("no slot available")
    prompts = state.options.slot_prompts
    return JsonResponse([_view(view, served, prompts) for view in views])


def _slots(served: Served) -> Slots:
    if served.slots is None:
        raise NotOfferedError("This model's engine has no slots.")
    return served.slots


def _view(view: SlotView, served: Served, prompts: bool) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": view.number,
        "n_ctx": served.context,
        "speculative": False,
        "is_processing": view.busy,
    }
    if view.task is None or view.sampling is None:
        return shown
    shown |= {
        "id_task": view.task,
        "n_prompt_tokens": view.prompt_tokens,
        "n_prompt_tokens_processed": view.computed_tokens,
        "n_prompt_tokens_cache": view.cached_tokens,
        "params": sampling_settings(view.sampling),
        "next_token": [
            {
                "has_next_token": view.busy,
                "has_new_line": view.several_lines,
                "n_remain": view.left if view.limit >= 0 else -1,
                "n_decoded": view.generated_tokens,
            }
        ],
    }
    if prompts:
        shown["prompt"] = served.tokenizer.decode(view.tokens[: view.prompt_tokens])
        shown["generated"] = served.tokenizer.decode(view.tokens[view.prompt_tokens :])
    return shown


async def change_slot(http: HttpRequest) -> Response:
    """``?action=save``, ``restore`` or ``erase``."""
    state: State = http.app.state.gristmill
    directory = state.options.slot_save_path
    if directory is None:
        raise NotOfferedError("Slots are saved and erased by a server with --slot-save-path only.")
    served, _ = await state.acquire(http, http.query_params.get("model"))
    slots = _slots(served)
    slot = _number(str(http.path_params["id_slot"]), slots)
    action = http.query_params.get("action", "")
    if action == "erase":
        dropped = await asyncio.to_thread(slots.erase, slot)
        return JsonResponse({"id_slot": slot, "n_erased": dropped})
    if action not in ("save", "restore"):
        raise RequestError("'action' must be save, restore or erase.", "action")
    fields = SlotFields.parse(await read_object(http, state.options.max_body_bytes))
    name = checked_name(fields.filename)
    run = slots.save if action == "save" else slots.restore
    path = Path(directory) / name
    began = time.monotonic()
    tokens, size = await asyncio.to_thread(_honest, run, slot, path)
    took = round((time.monotonic() - began) * 1e3, 3)
    body: dict[str, object] = {"id_slot": slot, "filename": name}
    if action == "save":
        body |= {"n_saved": tokens, "n_written": size, "timings": {"save_ms": took}}
    else:
        body |= {"n_restored": tokens, "n_read": size, "timings": {"restore_ms": took}}
    return JsonResponse(body)


def _honest(run: Callable[[int, Path], tuple[int, int]], slot: int, path: Path) -> tuple[int, int]:
    try:
        return run(slot, path)
    except FormatError as error:  # the client named the file
        raise RequestError(str(error), "filename") from error


def _number(text: str, slots: Slots) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) >= slots.count:
        raise RequestError(f"Slots go from 0 to {slots.count - 1}.", "id_slot")
    return int(text)


def checked_name(name: str) -> str:
    """A file's name that stays in its directory. Raises RequestError."""
    bad = (
        not 0 < len(name.encode()) <= MAX_NAME
        or not name.isprintable()
        or not _FORBIDDEN.isdisjoint(name)
        or ".." in name
        or name.startswith((" ", "."))
        or name.endswith((" ", "."))
    )
    if bad:
        raise RequestError(
            "'filename' must be a plain file name: no separators, no '..', no dot or blank at its "
            f"ends, at most {MAX_NAME} bytes.",
            "filename",
        )
    return name
