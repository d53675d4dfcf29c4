"""The flags of ``gristmill serve``: one table, with the names of both peers.

``OPTIONS`` are those with a meaning here; each is shown in its group of ``--help``.
``ACCEPTED`` are those that other servers need and this one does not: they are taken, and said
once to have no meaning.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from gristmill.errors import UsageError
from gristmill.options import Options

MEANINGLESS = "gristmill.meaningless"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


class Size(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """Bytes: ``4294967296``, ``4G``, ``512MiB``."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Units are powers of 1,024."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size like 4G, 512M or a number of bytes.", param, ctx)
        scale = 1024 ** " kmgt".index(match[2].lower() or " ")
        size = int(float(match[1]) * scale)
        if size < 1:
            self.fail(f"{value!r} is nothing; give at least one byte.", param, ctx)
        return size


class Grouped(click.Option):
    """An option that knows its group of the help page."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Without the range: the sentence says what matters, an error says the rest."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


def _option(group: str, *names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, cls=Grouped, group=group, **settings)


_AT_LEAST_1 = click.IntRange(min=1)

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    # ------------------------------------------------------------- the model
    click.argument("model", required=False),
    _option("Model", "-m", "--model", "model_flag", metavar="MODEL", help="The model, as a flag."),
    _option(
        "Model",
        "-hf",
        "--hf-repo",
        "hf",
        metavar="REPO[:QUANT]",
        help="A model on the Hugging Face hub; the same as hf:REPO[:QUANT].",
    ),
    _option(
        "Model",
        "-a",
        "--alias",
        "--served-model-name",
        "names",
        metavar="NAME",
        multiple=True,
        help="A name that requests may call it; may be repeated. Default: from the file.",
    ),
    _option("Model", "--any-model", is_flag=True, help="Take requests for any model name."),
    _option(
        "Model",
        "--chat-template",
        metavar="TEXT|FILE",
        help="A Jinja chat template instead of the model's own.",
    ),
    _option(
        "Model",
        "--chat-template-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The same, from a file.",
    ),
    _option(
        "Model",
        "--reasoning-parser",
        metavar="NAME",
        help="How to tell thinking from answering; 'none' leaves it in. Default: the template's.",
    ),
    _option(
        "Model",
        "--reasoning-format",
        type=click.Choice(["auto", "none", "deepseek"]),
        help="llama-server's name for it: 'none' leaves the thinking in the content.",
    ),
    _option(
        "Model",
        "--reasoning-field",
        type=click.Choice(["both", "reasoning", "reasoning-content"]),
        default="both",
        show_default=True,
        help="The name that thinking is sent under: vLLM's, llama-server's, or both.",
    ),
    # ----------------------------------------------------------- the network
    _option("Network", "--host", default="127.0.0.1", show_default=True, help="Address to serve."),
    _option(
        "Network",
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        show_default=True,
        help="Port to serve; 0 takes a free one.",
    ),
    _option(
        "Network",
        "--api-key",
        "api_keys",
        metavar="KEY",
        multiple=True,
        help="Ask for this key on every route but /health; may be repeated. "
        "Default: the key in VLLM_API_KEY, if any.",
    ),
    _option(
        "Network",
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keys from a file, one a line.",
    ),
    _option(
        "Network",
        "--allowed-origins",
        "--cors-origins",
        "origins",
        metavar="ORIGINS",
        multiple=True,
        help="Web origins that browsers may call from: a JSON list, or separated by commas.",
    ),
    _option(
        "Network",
        "--max-body-bytes",
        type=Size(),
        default="64M",
        show_default=True,
        help="Longest request body.",
    ),
    _option(
        "Network",
        "--shutdown-timeout",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long running answers may still take after Ctrl-C.",
    ),
    # ------------------------------------------------------------ the engine
    _option(
        "Engine",
        "--max-model-len",
        type=_AT_LEAST_1,
        metavar="TOKENS",
        help="Most tokens of one request, prompt and answer. Default: the model's own.",
    ),
    _option(
        "Engine",
        "-c",
        "--ctx-size",
        type=click.IntRange(min=0),
        metavar="TOKENS",
        help="llama-server's meaning: divided by -np, if that is given; 0 is the model's own.",
    ),
    _option(
        "Engine",
        "-np",
        "--parallel",
        "--max-num-seqs",
        "max_running",
        type=_AT_LEAST_1,
        metavar="N",
        help="Most requests computed at once; more wait in line.",
    ),
    _option(
        "Engine",
        "-b",
        "--batch-size",
        "-ub",
        "--ubatch-size",
        "--max-num-batched-tokens",
        "step_tokens",
        type=_AT_LEAST_1,
        metavar="TOKENS",
        help="Most tokens computed in one step.",
    ),
    _option(
        "Engine",
        "--max-waiting",
        type=click.IntRange(min=0),
        default=1024,
        show_default=True,
        metavar="N",
        help="Most requests in line; beyond it the answer is 503.",
    ),
    _option(
        "Engine",
        "--kv-cache-memory-bytes",
        "kv_bytes",
        type=Size(),
        help="Most memory for the KV cache. Default: what is free, taken as it is needed.",
    ),
    _option(
        "Engine",
        "-ctk",
        "--cache-type-k",
        "--kv-cache-dtype",
        "kv_dtype",
        default="auto",
        show_default=True,
        metavar="TYPE",
        help="How keys and values are kept: f16, bf16 or f32; auto is f16.",
    ),
    _option("Engine", "-ctv", "--cache-type-v", metavar="TYPE", help="Must be the same as -ctk."),
    _option(
        "Engine",
        "--enable-prefix-caching/--no-enable-prefix-caching",
        "prefix_cache",
        default=True,
        show_default=True,
        help="Compute the same beginning of two prompts once.",
    ),
    _option(
        "Engine",
        "-t",
        "--threads",
        type=_AT_LEAST_1,
        metavar="N",
        help="Threads that compute. Default: the physical cores this process may use.",
    ),
    _option(
        "Engine",
        "-s",
        "--seed",
        type=click.IntRange(-1, 2**63 - 1),
        metavar="N",
        help="Where requests without a seed draw theirs from; -1 is random.",
    ),
    _option(
        "Engine",
        "--step-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="A step that takes longer ends the process.",
    ),
    _option(
        "Engine",
        "--backend",
        type=click.Choice(["cpu", "reference"]),
        default="cpu",
        show_default=True,
        help="'reference' is exact and very slow: numpy, for comparing.",
    ),
    # ------------------------------------------------------------------ logs
    _option(
        "Logs",
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="How much is told on stderr.",
    ),
)

_NO_GPU = "there is no GPU back end"
_MEMORY = "memory is taken as it is needed"
_ALWAYS = "it is always so"
_TEMPLATE = "the template tells"

ACCEPTED: Mapping[tuple[str, ...], tuple[bool, str]] = {
    # names → (takes a value, why it has no meaning)
    ("--jinja", "--no-jinja"): (False, "templates are always Jinja"),
    ("--enable-auto-tool-choice",): (False, _TEMPLATE),
    ("--tool-call-parser",): (True, _TEMPLATE),
    ("-ngl", "--n-gpu-layers", "--gpu-layers"): (True, _NO_GPU),
    ("-sm", "--split-mode"): (True, _NO_GPU),
    ("-ts", "--tensor-split"): (True, _NO_GPU),
    ("-mg", "--main-gpu"): (True, _NO_GPU),
    ("--gpu-memory-utilization",): (True, _MEMORY),
    ("-tp", "--tensor-parallel-size"): (True, _NO_GPU),
    ("-pp", "--pipeline-parallel-size"): (True, _NO_GPU),
    ("-fa", "--flash-attn"): (True, "attention is always computed blockwise"),
    ("--mlock",): (False, "weights are packed into memory of their own"),
    ("--no-mmap",): (False, "weights are packed into memory of their own"),
    ("-cb", "--cont-batching"): (False, _ALWAYS),
    ("--enable-chunked-prefill",): (False, _ALWAYS),
    ("--metrics",): (False, _ALWAYS),
    ("--slots",): (False, "there are no fixed slots"),
    ("--no-slots",): (False, "there are no fixed slots"),
    ("--no-webui", "--no-ui"): (False, "there is no web page"),
    ("--enforce-eager",): (False, "there is nothing to capture"),
    ("--trust-remote-code",): (False, "code from a model is never run"),
    ("--swap-space",): (True, _MEMORY),
    ("--block-size",): (True, "the KV cache chooses its block"),
    ("--enable-prompt-tokens-details",): (False, _ALWAYS),
    ("--disable-log-stats",): (False, "nothing is logged by the second"),
    ("--disable-log-requests", "--no-enable-log-requests"): (False, "requests are not logged"),
    ("--uvicorn-log-level",): (True, "--log-level is for everything"),
    ("--task", "--runner"): (True, "the file tells"),
    ("-tb", "--threads-batch"): (True, "-t is for prompts and answers alike"),
    ("--threads-http",): (True, "one thread serves all connections"),
    ("--dtype",): (True, "weights are served as they are stored"),
    ("--no-warmup",): (False, "there is no warm-up"),
    ("-v", "--verbose"): (False, "--log-level debug tells more"),
}


def accepted() -> list[Callable[[Any], Any]]:
    """Hidden options that only remember that they were given."""
    made: list[Callable[[Any], Any]] = []
    for names, (takes_value, why) in ACCEPTED.items():
        kind: dict[str, Any] = {"type": str} if takes_value else {"is_flag": True}
        made.append(
            click.option(
                *names,
                hidden=True,
                expose_value=False,
                callback=_remember(" / ".join(names), why),
                **kind,
            )
        )
    return made


def _remember(names: str, why: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            ctx.meta.setdefault(MEANINGLESS, []).append(f"{names} has no meaning here: {why}.")

    return callback


def to_options(given: Mapping[str, Any]) -> Options:
    """The flags as ``Options``. Raises ``UsageError`` for those that contradict each other."""
    kv_dtype = _kv_type(given["kv_dtype"])
    other = given["cache_type_v"]
    if other is not None and _kv_type(other) != kv_dtype:
        raise UsageError("Keys and values are kept alike: give -ctk and -ctv the same type.")
    seed = given["seed"]
    return Options(
        model=model_reference(given["model"], given["model_flag"], given["hf"]),
        served_names=tuple(_split(given["names"])),
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
    return {"auto": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(name, name)


def model_reference(argument: str | None, flag: str | None, hf: str | None) -> str:
    """The one model named. ``owner/name`` that is no path here is a hub repository, as in vLLM."""
    given = (argument, flag, f"hf:{hf}" if hf else hf)
    named = [each for each in given if each is not None]
    if "" in named:  # an unset variable of a script: it did not mean the default model
        raise UsageError("The model's name is empty; leave it out for the default model.")
    if len(set(named)) > 1:
        raise UsageError(f"One model can be served, but {len(named)} are named: {named}.")
    if not named:
        return Options().model
    model = named[0]
    if _REPO.fullmatch(model) and not model.endswith(".gguf") and not Path(model).exists():
        return f"hf:{model}"
    return model


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
