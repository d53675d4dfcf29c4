"""From flags to ``Options``: what a person asked for, checked where flags meet each other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.cli.several import named_models
from gristmill.errors import UsageError
from gristmill.options import Options


def to_options(given: Mapping[str, Any]) -> Options:
    """The flags as ``Options``. Raises ``UsageError`` for those that contradict each other."""
    kv_dtype = _kv_type(given["kv_dtype"])
    other = given["cache_type_v"]
    if other is not None and _kv_type(other) != kv_dtype:
        raise UsageError("Keys and values are kept alike: give -ctk and -ctv the same type.")
    seed = given["seed"]
    models = named_models(
        given["model"],
        given["model_flag"],
        given["hf"],
        _split(given["names"]),
        given["all_models"],
    )
    return Options(
        model=models[0].reference if models else "",
        served_names=models[0].names if models else (),
        more_models=models[1:],
        all_models=given["all_models"],
        model_memory=given["model_memory"],
        keep_alive=_forever(given["keep_alive"]),
        load_timeout=given["load_timeout"],
        allow_pull=given["allow_pull"],
        context=_context(given["max_model_len"], given["ctx_size"], given["max_running"]),
        max_running=given["max_running"],
        step_tokens=given["step_tokens"],
        kv_bytes=_kv_from_environment() if given["kv_bytes"] is None else given["kv_bytes"],
        kv_dtype=kv_dtype,
        threads=given["threads"],
        prefix_cache=given["prefix_cache"],
        max_waiting=given["max_waiting"],
        seed=None if seed == -1 else seed,
        step_timeout=given["step_timeout"],
        host=given["host"],
        port=given["port"],
        api_keys=_keys(given["api_keys"], given["api_key_file"]),
        any_model=given["any_model"],
        allowed_origins=tuple(_split(given["origins"])),
        chat_template=_template(given["chat_template"], given["chat_template_file"]),
        reasoning_field=given["reasoning_field"].replace("-", "_"),
        reasoning_parser=_reasoning(given["reasoning_parser"], given["reasoning_format"]),
        shutdown_timeout=given["shutdown_timeout"],
        max_body_bytes=given["max_body_bytes"],
        log_level=given["log_level"],
    )


def _kv_type(name: str) -> str:
    """Both peers' names for it as one."""
    name = name.lower()
    return {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(name, name)


def _forever(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _context(per_request: int | None, total: int | None, running: int | None) -> int | None:
    if per_request is not None and total:
        raise UsageError("Give --max-model-len (per request) or -c (divided by -np), not both.")
    if per_request is not None or not total:
        return per_request
    return max(1, total // (running or 1))


def _kv_from_environment() -> int | None:
    """vLLM's variable, a number of GiB."""
    text = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    if not text:
        return None
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e9:
        raise UsageError(f"VLLM_CPU_KVCACHE_SPACE is {text!r}; it must be a number of GiB.")
    return int(amount * 2**30) or None


def _split(values: tuple[str, ...]) -> list[str]:
    """Repeated, separated by commas, or a JSON list."""
    found: list[str] = []
    for value in values:
        if value.lstrip().startswith("["):
            try:
                items: Any = json.loads(value)
            except ValueError:
                raise UsageError(f"{value!r} is not a JSON list.") from None
            found.extend(str(item) for item in items)
        else:
            found.extend(part.strip() for part in value.split(",") if part.strip())
    return list(dict.fromkeys(found))


def _keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    keys = list(given)
    if not keys and os.environ.get("VLLM_API_KEY"):
        keys = [os.environ["VLLM_API_KEY"]]
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        keys.extend(line for line in lines if line)
        if not keys:
            raise UsageError(f"{file} holds no key.")
    if any(not key.strip() for key in keys):
        raise UsageError("An API key is empty; leave --api-key out to serve without one.")
    return tuple(dict.fromkeys(keys))


def _template(text: str | None, file: Path | None) -> str | None:
    if file is not None:
        return file.read_text(encoding="utf-8")
    if text is None or "{" in text:
        return text
    if Path(text).is_file():
        return Path(text).read_text(encoding="utf-8")
    raise UsageError(f"--chat-template {text!r} is neither a template nor a file.")


def _reasoning(parser: str | None, form: str | None) -> str | None:
    return "none" if form == "none" else parser
