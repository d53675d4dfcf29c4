"""Flags from environment variables: the names that vLLM, llama-server and Ollama read.

The command line and ``--config`` stand before them. An empty variable is an absent one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from gristmill.cli.config import convert
from gristmill.errors import UsageError

VARIABLES: Mapping[str, str] = {
    # variable → parameter of the command
    "LLAMA_ARG_MODEL": "model_flag",
    "LLAMA_ARG_MODEL_URL": "model_url",
    "LLAMA_ARG_HF_REPO": "hf",
    "LLAMA_ARG_HF_FILE": "hf_file",
    "LLAMA_ARG_ALIAS": "names",
    "LLAMA_ARG_CTX_SIZE": "ctx_size",
    "LLAMA_ARG_N_PARALLEL": "max_running",
    "LLAMA_ARG_BATCH": "step_tokens",
    "LLAMA_ARG_UBATCH": "step_tokens",
    "LLAMA_ARG_THREADS": "threads",
    "LLAMA_ARG_CPU_MASK": "cpu_mask",
    "LLAMA_ARG_CPU_RANGE": "cpu_range",
    "VLLM_CPU_OMP_THREADS_BIND": "cpu_range",
    "LLAMA_ARG_CACHE_TYPE_K": "kv_dtype",
    "LLAMA_ARG_POOLING": "pooling",
    "LLAMA_ARG_CACHE_TYPE_V": "cache_type_v",
    "VLLM_CPU_KVCACHE_SPACE": "kv_bytes",
    "LLAMA_ARG_HOST": "host",
    "LLAMA_ARG_PORT": "port",
    "LLAMA_ARG_API_PREFIX": "root_path",
    "LLAMA_ARG_CORS_ORIGINS": "origins",
    "VLLM_API_KEY": "api_keys",
    "LLAMA_API_KEY": "api_keys",
    "LLAMA_ARG_API_KEY": "api_keys",
    "LLAMA_ARG_API_KEY_FILE": "api_key_file",
    "LLAMA_ARG_SSL_KEY_FILE": "tls_key",
    "LLAMA_ARG_SSL_CERT_FILE": "tls_certificate",
    "LLAMA_ARG_CHAT_TEMPLATE": "chat_template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "chat_template_file",
    "LLAMA_CHAT_TEMPLATE_KWARGS": "template_variables",
    "LLAMA_ARG_CHAT_TEMPLATE_KWARGS": "template_variables",
    "LLAMA_ARG_REASONING": "reasoning",
    "LLAMA_ARG_THINK": "reasoning_format",
    "LLAMA_ARG_THINK_BUDGET": "reasoning_budget",
    "LLAMA_ARG_TEMPERATURE": "temperature",
    "LLAMA_ARG_TOP_K": "top_k",
    "LLAMA_ARG_TOP_P": "top_p",
    "LLAMA_ARG_MIN_P": "min_p",
    "LLAMA_ARG_REPEAT_PENALTY": "repetition_penalty",
    "LLAMA_ARG_SSE_PING_INTERVAL": "ping_interval",
    "LLAMA_ARG_ENDPOINT_SLOTS": "slots",
    "LLAMA_SERVER_SLOTS_DEBUG": "slot_prompts",
    "LLAMA_ARG_ENDPOINT_PROPS": "props",
    "VLLM_SERVER_DEV_MODE": "dev_mode",
    "VLLM_LOGGING_LEVEL": "log_level",
    "LLAMA_ARG_LOG_VERBOSITY": "verbosity",
    "LLAMA_ARG_LOG_FILE": "log_file",
    "LLAMA_ARG_LOG_JSONL": "log_jsonl",
    "OLLAMA_HOST": "host",
    "OLLAMA_KEEP_ALIVE": "keep_alive",
    "OLLAMA_ORIGINS": "origins",
}
_OLLAMA = re.compile(r"(?:(https?)://)?(\[[0-9a-fA-F:.]+\]|[^/:\[\]]*)(?::(\d+))?/?")
_OLLAMA_PORT = "11434"


def read_environment(
    environment: Mapping[str, str], command: click.Command, ctx: click.Context
) -> tuple[dict[str, Any], list[str]]:
    """Values by parameter name; and what to say of ``LLAMA_ARG_`` variables that mean nothing.

    Of several variables for one parameter the first of the table counts, several API keys add
    up. Raises UsageError that names the variable.
    """
    params = {str(param.name): param for param in command.get_params(ctx)}
    found: dict[str, Any] = {}
    for variable, name in VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text or (variable == "OLLAMA_HOST" and {"host", "port"} & set(found)):
            continue
        change = _CHANGES.get(variable)
        values = change(variable, text) if change else {name: text}
        for where, value in values.items():
            param = params[where]
            many = getattr(param, "multiple", False)
            got = convert(param, ctx, variable, [value] if many else value)
            if where in found and where == "api_keys":
                found[where] = (*found[where], *got)
            else:
                found.setdefault(where, got)
    idle = [
        f"{variable} has no meaning here."
        for variable in sorted(environment)
        if variable.startswith("LLAMA_ARG_") and variable not in VARIABLES
    ]
    return found, idle


Change = Callable[[str, str], Mapping[str, str]]


def _gibibytes(variable: str, text: str) -> Mapping[str, str]:
    """vLLM's number of GiB; 0 leaves it to the server."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e9:
        raise UsageError(f"{variable} is {text!r}; it must be a number of GiB.")
    return {"kv_bytes": str(int(amount * 2**30))} if amount else {}


def _binding(_variable: str, text: str) -> Mapping[str, str]:
    """vLLM's list of CPUs; its two words leave the choice to the server."""
    return {} if text in ("auto", "nobind", "all") else {"cpu_range": text}


def _auto(name: str) -> Change:
    """Numbers of llama-server whose -1 is "choose for me"."""

    def change(_variable: str, text: str) -> Mapping[str, str]:
        return {} if text in ("-1", "auto") else {name: text}

    return change


def _ollama_host(variable: str, text: str) -> Mapping[str, str]:
    """HOST, HOST:PORT or an address with http://; Ollama's port where none is given."""
    match = _OLLAMA.fullmatch(text)
    if match is None:
        raise UsageError(f"{variable} is {text!r}; it must be like 127.0.0.1:11434.")
    ports = {"http": "80", "https": "443", None: _OLLAMA_PORT}
    host = (match[2] or "127.0.0.1").strip("[]")
    return {"host": host, "port": match[3] or ports[match[1]]}


def _level(_variable: str, text: str) -> Mapping[str, str]:
    return {"log_level": text.lower()}


_CHANGES: Mapping[str, Change] = {
    "VLLM_CPU_KVCACHE_SPACE": _gibibytes,
    "VLLM_CPU_OMP_THREADS_BIND": _binding,
    "VLLM_LOGGING_LEVEL": _level,
    "LLAMA_ARG_N_PARALLEL": _auto("max_running"),
    "LLAMA_ARG_THREADS": _auto("threads"),
    "OLLAMA_HOST": _ollama_host,
}
