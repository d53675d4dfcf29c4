"""From flags to ``Options``: what a person asked for, checked where flags meet each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gristmill.cli.asked_http import server_options, split
from gristmill.cli.several import named_models
from gristmill.errors import UsageError
from gristmill.options import Options
from gristmill.types import Pooling

MOST_DRAFTED = 64

_POOLINGS: Mapping[str | None, Pooling] = {
    "none": "each",
    "mean": "mean",
    "cls": "first",
    "last": "last",
}


def _draft_tokens(given: Mapping[str, Any]) -> int:
    """Guesses for one step of an answer, by either peer's flags. Raises ``UsageError``."""
    if given["spec_type"] == "none":
        return 0
    text = given["speculative_config"]
    if text is None:
        return given["draft_tokens"]
    try:
        config: object = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise UsageError("--speculative-config must be a JSON object.")
    fields = cast("Mapping[str, Any]", config)
    method = fields.get("method", "draft_model" if "model" in fields else "ngram")
    if method not in ("ngram", "[ngram]"):
        raise UsageError(
            f"--speculative-config asks for the method {str(method)[:40]!r}; served is 'ngram'."
        )
    most: object = fields.get("num_speculative_tokens", given["draft_tokens"])
    if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= MOST_DRAFTED:
        raise UsageError(
            "--speculative-config: 'num_speculative_tokens' must be a whole number from 0 to "
            f"{MOST_DRAFTED}."
        )
    return most


def _lower(name: str | None) -> str | None:
    return name.lower() if name and name.lower() not in ("none", "auto") else None


def to_options(given: Mapping[str, Any]) -> Options:
    """The flags as ``Options``. Raises ``UsageError`` for those that contradict each other."""
    kv_dtype = _kv_type(given["kv_dtype"])
    other = given["cache_type_v"]
    if other is not None and kv_dtype == "auto":
        kv_dtype = _kv_type(other)
    if other is not None and _kv_type(other) != kv_dtype:
        raise UsageError("Keys and values are kept alike: give -ctk and -ctv the same type.")
    seed = given["seed"]
    models = named_models(
        given["model"],
        _with_url(given["model_flag"], given["model_url"]),
        _with_file(given["hf"], given["hf_file"]),
        split(given["names"]),
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
        slowdown=given["slowdown"],
        draft_tokens=_draft_tokens(given),
        draft_match=given["draft_match"],
        kv_bytes=given["kv_bytes"],
        kv_dtype=kv_dtype,
        quantization=_lower(given["quantization"]),
        embedding_type=_lower(given["embedding_type"]),
        output_type=_lower(given["output_type"]),
        pooling=_POOLINGS.get(given["pooling"]),
        threads=given["threads"],
        prefix_cache=given["prefix_cache"],
        prefix_cache_dir=_folder(given["prefix_cache_dir"]),
        prefix_cache_dir_bytes=given["prefix_cache_dir_bytes"],
        context_shift=given["context_shift"],
        max_waiting=given["max_waiting"],
        seed=None if seed == -1 else seed,
        step_timeout=given["step_timeout"],
        any_model=given["any_model"],
        chat_template=_template(given["chat_template"], given["chat_template_file"]),
        reasoning_field=given["reasoning_field"].replace("-", "_"),
        tool_call_parser=given["tool_call_parser"],
        reasoning_parser=given["reasoning_parser"],
        reasoning_budget=None if given["reasoning_budget"] == -1 else given["reasoning_budget"],
        reasoning_format=given["reasoning_format"],
        **server_options(given),
    )


def _kv_type(name: str) -> str:
    """Both peers' names for it as one."""
    name = name.lower()
    return {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(name, name)


def _with_url(models: tuple[str, ...], url: str | None) -> tuple[str, ...]:
    """llama-server's ``--model-url``; its ``--model`` then says where to put the file: not here."""
    if url is None:
        return models
    if not url.startswith("https://"):
        raise UsageError(f"--model-url is {url!r}; it must begin with https://.")
    return (url,)


def _with_file(repositories: tuple[str, ...], file: str | None) -> tuple[str, ...]:
    """llama-server's ``--hf-file``: which file of the one repository."""
    if file is None:
        return repositories
    if len(repositories) != 1:
        raise UsageError("--hf-file needs one --hf-repo.")
    return (f"{repositories[0].partition(':')[0]}:{file}",)


def _folder(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _forever(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def _context(per_request: int | None, total: int | None, running: int | None) -> int | None:
    if per_request is not None and total:
        raise UsageError("Give --max-model-len (per request) or -c (divided by -np), not both.")
    if per_request is not None or not total:
        return per_request
    return max(1, total // (running or 1))


def _template(text: str | None, file: Path | None) -> str | None:
    if file is not None:
        return file.read_text(encoding="utf-8")
    if text is None or "{" in text:
        return text
    if Path(text).is_file():
        return Path(text).read_text(encoding="utf-8")
    raise UsageError(f"--chat-template {text!r} is neither a template nor a file.")
