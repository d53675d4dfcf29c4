"""Flags that other servers have and this one has not.

``ACCEPTED`` are those it does not need: taken, and said once to have no meaning. ``REFUSED``
are those that would change what is served: they are errors that say so, for a wish that is
ignored is worse than one that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from gristmill.errors import UsageError

MEANINGLESS = "gristmill.meaningless"
"""Key of the context's ``meta``: the sentences to say."""

_NO_GPU = "there is no GPU back end"
_MEMORY = "memory is taken as it is needed"
_ALWAYS = "it is always so"
_TEMPLATE = "the template tells"
_PACKED = "weights are packed into memory of their own"
_ONE = "one process serves all connections"
_STORED = "weights are served as they are stored"
_NOT_LOGGED = "answers are never logged"
_CACHE = "cached prompts are kept in blocks that all requests share"
_HUB = "fetched files are kept in the model store (GRISTMILL_HOME)"
_WORKERS = "worker threads sleep when there is nothing to do"
_NO_UI = "there is no web page"
_ENGINE = "the engine has one way to do it"

ACCEPTED: Mapping[tuple[str, ...], tuple[bool, str]] = {
    # names → (takes a value, why it has no meaning)
    # --- both
    ("--jinja", "--no-jinja"): (False, "templates are always Jinja"),
    ("--enable-auto-tool-choice",): (False, _TEMPLATE),
    ("--trust-remote-code",): (False, "code from a model is never run"),
    # --- llama-server
    ("-ngl", "--n-gpu-layers", "--gpu-layers"): (True, _NO_GPU),
    ("-sm", "--split-mode"): (True, _NO_GPU),
    ("-ts", "--tensor-split"): (True, _NO_GPU),
    ("-mg", "--main-gpu"): (True, _NO_GPU),
    ("-dev", "--device"): (True, _NO_GPU),
    ("-ot", "--override-tensor"): (True, _NO_GPU),
    ("-cmoe", "--cpu-moe"): (False, _NO_GPU),
    ("-ncmoe", "--n-cpu-moe"): (True, _NO_GPU),
    ("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"): (False, _NO_GPU),
    ("--op-offload", "--no-op-offload"): (False, _NO_GPU),
    ("-fit", "--fit"): (True, _MEMORY),
    ("-fitt", "--fit-target"): (True, _MEMORY),
    ("-fitc", "--fit-ctx"): (True, _MEMORY),
    ("-fa", "--flash-attn"): (True, "attention is always computed blockwise"),
    ("--mlock",): (False, _PACKED),
    ("--mmap", "--no-mmap"): (False, _PACKED),
    ("-lm", "--load-mode"): (True, _PACKED),
    ("--repack", "-nr", "--no-repack"): (False, _PACKED),
    ("--no-host",): (False, _PACKED),
    ("--check-tensors",): (False, "every size in a file is always checked"),
    ("--numa",): (True, "--cpu-range binds the process to a node's CPUs"),
    ("-cb", "--cont-batching", "-nocb", "--no-cont-batching"): (False, _ALWAYS),
    ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"): (False, _CACHE),
    ("--swa-full",): (False, _CACHE),
    ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"): (True, _CACHE),
    ("-cram", "--cache-ram"): (True, _CACHE),
    ("--cache-reuse",): (True, _CACHE),
    ("--cache-prompt", "--no-cache-prompt"): (False, "--no-enable-prefix-caching turns it off"),
    ("--cache-idle-slots", "--no-cache-idle-slots"): (False, _CACHE),
    ("-sps", "--slot-prompt-similarity"): (True, _CACHE),
    ("-dt", "--defrag-thold"): (True, _CACHE),
    ("--keep",): (True, "each request says what a shift of its context keeps (n_keep)"),
    ("-tb", "--threads-batch"): (True, "-t is for prompts and answers alike"),
    ("-Cb", "--cpu-mask-batch"): (True, "--cpu-mask is for prompts and answers alike"),
    ("-Crb", "--cpu-range-batch"): (True, "--cpu-range is for prompts and answers alike"),
    ("--cpu-strict",): (True, "the kernel places threads within --cpu-range"),
    ("--cpu-strict-batch",): (True, "the kernel places threads within --cpu-range"),
    ("--prio",): (True, "nice and chrt set a process' priority"),
    ("--prio-batch",): (True, "nice and chrt set a process' priority"),
    ("--poll",): (True, _WORKERS),
    ("--poll-batch",): (True, _WORKERS),
    ("--threads-http",): (True, _ONE),
    ("--reuse-port",): (False, _ONE),
    ("-to", "--timeout"): (True, "a slow client is given up by fixed bounds"),
    ("--metrics",): (False, _ALWAYS),
    ("--ui", "--webui", "--no-webui", "--no-ui"): (False, _NO_UI),
    ("--ui-config", "--webui-config"): (True, _NO_UI),
    ("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"): (False, _NO_UI),
    ("--warmup", "--no-warmup"): (False, "there is no warm-up"),
    ("--perf", "--no-perf"): (False, "timings are always in the reply"),
    ("--show-timings", "--no-show-timings"): (False, "timings are always in the reply"),
    ("-e", "--escape", "--no-escape"): (False, "prompts come over HTTP"),
    ("-co", "--color"): (True, "the log has no colours"),
    ("--log-colors",): (True, "the log has no colours"),
    ("--log-prefix", "--no-log-prefix"): (False, "every line of the log has one"),
    ("--log-timestamps", "--no-log-timestamps"): (False, "JSON lines have the time"),
    ("--tags",): (True, "names are what --alias gives"),
    ("--cors-methods",): (True, "all are allowed from an allowed origin"),
    ("--cors-headers",): (True, "all are allowed from an allowed origin"),
    ("--cors-credentials", "--no-cors-credentials"): (False, "the key comes in a header"),
    ("--prefill-assistant", "--no-prefill-assistant"): (
        False,
        "continue_final_message in the request asks for it",
    ),
    ("--reasoning-preserve", "--no-reasoning-preserve"): (False, _TEMPLATE),
    ("--skip-chat-parsing", "--no-skip-chat-parsing"): (False, "--reasoning-format none does it"),
    ("--spm-infill",): (False, _TEMPLATE),
    # --- vLLM
    ("--gpu-memory-utilization",): (True, _MEMORY),
    ("-tp", "--tensor-parallel-size"): (True, _NO_GPU),
    ("-pp", "--pipeline-parallel-size"): (True, _NO_GPU),
    ("-dp", "--data-parallel-size"): (True, _ONE),
    ("--distributed-executor-backend",): (True, _ONE),
    ("-asc", "--api-server-count"): (True, _ONE),
    ("--max-parallel-loading-workers",): (True, _PACKED),
    ("--load-format",): (True, "the file tells"),
    ("--safetensors-load-strategy",): (True, _PACKED),
    ("--download-dir",): (True, _HUB),
    ("--tokenizer-mode",): (True, "the file tells"),
    ("--config-format",): (True, "the file tells"),
    ("--model-impl",): (True, _ENGINE),
    ("--task", "--runner"): (True, "the file tells"),
    ("--dtype",): (True, _STORED),
    ("--enable-chunked-prefill", "--no-enable-chunked-prefill"): (False, _ALWAYS),
    ("--max-num-partial-prefills",): (True, "prompts share a step as they fit"),
    ("--max-long-partial-prefills",): (True, "prompts share a step as they fit"),
    ("--long-prefill-token-threshold",): (True, "a step is kept short by its measured time"),
    ("--scheduling-policy",): (True, "smaller priority goes first, then first come"),
    ("--async-scheduling", "--no-async-scheduling"): (False, _ENGINE),
    ("--enforce-eager", "--no-enforce-eager"): (False, "there is nothing to capture"),
    ("--compilation-config", "-cc"): (True, "there is nothing to compile"),
    ("--optimization-level",): (True, "there is nothing to compile"),
    ("--attention-backend",): (True, _ENGINE),
    ("--swap-space",): (True, _MEMORY),
    ("--cpu-offload-gb",): (True, _MEMORY),
    ("--block-size",): (True, "the KV cache chooses its block"),
    ("--num-gpu-blocks-override",): (True, "--kv-cache-memory-bytes bounds the cache"),
    ("--prefix-caching-hash-algo",): (True, _ENGINE),
    ("--enable-prompt-tokens-details",): (False, _ALWAYS),
    ("--enable-request-id-headers",): (False, _ALWAYS),
    ("--enable-ssl-refresh",): (False, "certificates are read again on SIGHUP"),
    ("--disable-log-stats",): (False, "nothing is logged by the second"),
    ("--enable-log-outputs", "--no-enable-log-outputs"): (False, _NOT_LOGGED),
    ("--enable-log-deltas", "--no-enable-log-deltas"): (False, _NOT_LOGGED),
    ("--max-log-len",): (True, "--log-prompts logs at most 2,000 characters"),
    ("--enable-server-load-tracking",): (False, _ALWAYS),
    ("--disable-fastapi-docs",): (False, "there are no pages, only /openapi.json"),
    ("--allowed-methods",): (True, "all are allowed from an allowed origin"),
    ("--allowed-headers",): (True, "all are allowed from an allowed origin"),
    ("--allow-credentials",): (False, "the key comes in a header"),
    ("--chat-template-content-format",): (True, _TEMPLATE),
    ("--max-logprobs",): (True, "20 are the most"),
    ("--enable-sleep-mode",): (False, _MEMORY),
    ("--limit-mm-per-prompt",): (True, "text only is served"),
    ("--language-model-only",): (False, _ALWAYS),
}

_NO_LORA = "adapters are not served by this version"
_NO_DRAFT = "guesses come from the text so far (--draft-max), not from a second model"
_NO_ROPE = "the context's scaling is the model's own"
_NO_IMAGES = "this version serves text only"

REFUSED: Mapping[tuple[str, ...], tuple[bool, str]] = {
    # names → (takes a value, why it is refused)
    ("--lora",): (True, _NO_LORA),
    ("--lora-scaled",): (True, _NO_LORA),
    ("--lora-modules",): (True, _NO_LORA),
    ("--enable-lora",): (False, _NO_LORA),
    ("--control-vector",): (True, "control vectors are not served by this version"),
    ("-md", "--model-draft", "--spec-draft-model"): (True, _NO_DRAFT),
    ("-hfd", "--hf-repo-draft"): (True, _NO_DRAFT),
    ("-mm", "--mmproj"): (True, _NO_IMAGES),
    ("-mmu", "--mmproj-url"): (True, _NO_IMAGES),
    ("--rope-scaling",): (True, _NO_ROPE),
    ("--rope-scale",): (True, _NO_ROPE),
    ("--rope-freq-base",): (True, _NO_ROPE),
    ("--rope-freq-scale",): (True, _NO_ROPE),
    ("--rope-theta",): (True, _NO_ROPE),
    ("--yarn-orig-ctx",): (True, _NO_ROPE),
    ("--override-kv",): (True, "a model's metadata is served as it is"),
    ("--hf-overrides",): (True, "a model's metadata is served as it is"),
    ("--embedding", "--embeddings"): (False, "embeddings are always served, beside text"),
    ("--rerank", "--reranking"): (False, "rankings are always served, by embeddings"),
    ("--grammar",): (True, "a constraint is given with each request"),
    ("--grammar-file",): (True, "a constraint is given with each request"),
    ("-j", "--json-schema"): (True, "a constraint is given with each request"),
    ("-n", "--predict", "--n-predict"): (True, "the bound is given with each request (max_tokens)"),
    ("--presence-penalty",): (True, "it is given with each request"),
    ("--frequency-penalty",): (True, "it is given with each request"),
    ("--mirostat",): (True, "it is given with each request"),
    ("--ignore-eos",): (False, "it is given with each request"),
    ("--tokenizer",): (True, "the model's own is used"),
    ("--revision",): (True, "hf: references take the repository's main branch"),
    ("--middleware",): (True, "code is not loaded into the server"),
    ("--tool-parser-plugin",): (True, "code is not loaded into the server"),
    ("--reasoning-parser-plugin",): (True, "code is not loaded into the server"),
    ("--path",): (True, _NO_UI),
    ("--tools",): (True, "the server runs no tools itself"),
    ("--tool-server",): (True, "the server runs no tools itself"),
}

Callback = Callable[[click.Context, click.Parameter, Any], None]


def accepted() -> list[Callable[[Any], Any]]:
    """Hidden options that only remember that they were given, or refuse to be."""
    made: list[Callable[[Any], Any]] = []
    for table, what in ((ACCEPTED, _remember), (REFUSED, _refuse)):
        for names, (takes_value, why) in table.items():
            kind: dict[str, Any] = {"type": str} if takes_value else {"is_flag": True}
            made.append(
                click.option(
                    *names,
                    hidden=True,
                    expose_value=False,
                    callback=what(" / ".join(names), why),
                    **kind,
                )
            )
    return made


def _remember(names: str, why: str) -> Callback:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            ctx.meta.setdefault(MEANINGLESS, []).append(f"{names} has no meaning here: {why}.")

    return callback


def _refuse(names: str, why: str) -> Callback:
    def callback(_ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            raise UsageError(f"{names} cannot be honoured: {why}.")

    return callback
