"""From flags to ``Options``, the server's half: addresses, keys, TLS, CPUs, logs, defaults."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.cli.flags_routes import route_options
from gristmill.errors import UsageError
from gristmill.options import Options, Tls

MAX_FILE = 1 << 20
"""No file of keys is longer."""
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_PREFIX = re.compile(r"(/[\w.~-]+)*")
_LLAMA_LEVELS = ("error", "error", "warning", "info")
_PYTHON_LEVELS: Mapping[str, str] = {"trace": "debug", "critical": "error"}
_CLIENTS = ("none", "optional", "required")
_SAMPLING = (
    # vLLM's names in --override-generation-config are these too.
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "repeat_last_n",
)


def server_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``Options`` that say how to serve. Raises UsageError."""
    host, uds = address(given["host"], given["uds"])
    file = given["api_key_file"]
    ping = given["ping_interval"]
    given_keys = split(given["api_keys"], json_only=False)
    return {
        "host": host,
        "port": given["port"],
        "uds": uds,
        "uds_mode": _mode(given["uds_mode"]),
        "root_path": _prefix(given["root_path"]),
        "api_keys": keys(given_keys, file),
        "api_keys_given": keys(given_keys, None),
        "api_key_file": None if file is None else str(file),
        "allowed_origins": tuple(split(given["origins"])),
        "max_body_bytes": given["max_body_bytes"],
        "response_store_bytes": given["response_store_bytes"],
        "max_head_bytes": given["max_head_bytes"],
        "max_headers": given["max_headers"],
        "ping_interval": math.inf if ping <= 0 else ping,
        "health_timeout": given["health_timeout"],
        "shutdown_timeout": given["shutdown_timeout"],
        "request_timeout": given["request_timeout"],
        **route_options(given),
        "tls": _tls(given),
        "cpus": cpus(given["cpu_mask"], given["cpu_range"]),
        "sampling": _sampling(given),
        "file_sampling": _file_sampling(given["generation_config"]),
        "template_variables": _variables(given["template_variables"], given["reasoning"]),
        **_logs(given),
    }


# -------------------------------------------------------------------- addresses


def address(host: str, uds: str | None) -> tuple[str, str | None]:
    """Host, and the path of a Unix socket if that is what is meant.

    ``unix:///PATH`` and ``unix:PATH`` are ours, a host that ends with ``.sock`` is
    llama-server's way to say it.
    """
    path = uds
    if host.startswith("unix:"):
        path = host.removeprefix("unix:")
        path = path[2:] if path.startswith("//") else path
    elif host.endswith(".sock"):
        path = host
    if path is None:
        return host, None
    if not path:
        raise UsageError("The path of the Unix socket is empty.")
    if len(os.fsencode(path)) > 100:
        raise UsageError(f"The path of the Unix socket is too long (100 bytes at most): {path}.")
    return Options().host, path


def _mode(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-7]{1,4}", text) or int(text, 8) > 0o777:
        raise UsageError(f"--uds-mode is {text!r}; it must be an octal number up to 777.")
    return int(text, 8)


def _prefix(text: str) -> str:
    prefix = text.rstrip("/")
    if prefix and not prefix.startswith("/"):
        prefix = "/" + prefix
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"--root-path is {text!r}; it must be a path like /llm.")
    return prefix


def _tls(given: Mapping[str, Any]) -> Tls | None:
    certificate, key = given["tls_certificate"], given["tls_key"]
    if certificate is None:
        for name in ("tls_key", "tls_ca", "tls_reqs", "tls_password", "tls_ciphers"):
            if given[name] is not None:
                raise UsageError("TLS needs --ssl-certfile besides the other --ssl-... flags.")
        return None
    reqs = given["tls_reqs"]
    if reqs is None:
        reqs = 2 if given["tls_ca"] is not None else 0
    if reqs and given["tls_ca"] is None:
        raise UsageError("--ssl-cert-reqs needs --ssl-ca-certs: whose certificates are good?")
    return Tls(
        certificate=str(certificate),
        key=str(key or certificate),
        password=given["tls_password"],
        ca=None if given["tls_ca"] is None else str(given["tls_ca"]),
        client_certificates=_CLIENTS[reqs],
        ciphers=given["tls_ciphers"],
    )


# ------------------------------------------------------------------------- keys


def split(values: Sequence[str], json_only: bool = True) -> list[str]:
    """Repeated, separated by commas, or a JSON list.

    ``json_only`` False leaves a text with commas alone: it may be one key.
    """
    found: list[str] = []
    for value in values:
        if value.lstrip().startswith("["):
            try:
                items: Any = json.loads(value)
            except ValueError:
                raise UsageError(f"{value!r} is not a JSON list.") from None
            found.extend(str(item) for item in items)
        elif json_only:
            found.extend(part.strip() for part in value.split(",") if part.strip())
        else:
            found.extend(part.strip() for part in value.split(","))
    return list(dict.fromkeys(found))


def keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """All keys. Raises UsageError for an empty one, or a file without any."""
    found = [*given, *(read_keys(file) if file is not None else ())]
    for key in found:
        if not key.strip():
            raise UsageError("An API key is empty; leave --api-key out to serve without one.")
        if not key.isascii() or not key.isprintable():
            raise UsageError("An API key may hold printable ASCII only: it comes in a header.")
    return tuple(dict.fromkeys(found))


def read_keys(file: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; empty lines and those that begin with # are none."""
    try:
        with file.open("rb") as source:
            data = source.read(MAX_FILE + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no text file in UTF-8.") from None
    if len(data) > MAX_FILE:
        raise UsageError(f"{file} is longer than a file of keys may be ({MAX_FILE} bytes).")
    lines = (line.strip() for line in text.splitlines())
    found = tuple(line for line in lines if line and not line.startswith("#"))
    if not found:
        raise UsageError(f"{file} holds no key.")
    return found


# ------------------------------------------------------------------------- CPUs


def cpus(mask: str | None, listed: str | None) -> tuple[int, ...]:
    """The CPUs named by both, ascending. Raises UsageError for what names none."""
    found: set[int] = set()
    if mask is not None:
        digits = mask.lower().removeprefix("0x")
        if not re.fullmatch(r"[0-9a-f]{1,1024}", digits) or not int(digits, 16):
            raise UsageError(f"--cpu-mask is {mask!r}; it must be a hexadecimal number above 0.")
        bits = int(digits, 16)
        found |= {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}
    if listed is not None:
        found |= _listed(listed)
    return tuple(sorted(found))


def _listed(text: str) -> set[int]:
    # vLLM separates the ranks of a server of several processes by "|"; here is one process.
    found: set[int] = set()
    for part in re.split(r"[,|]", text.strip()):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first:
            raise UsageError(f"{text!r} is no list of CPUs like 0-3,8.")
        found |= set(range(first, last + 1))
    return found


# --------------------------------------------------------- defaults of requests


def _object(flag: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{flag} must be a JSON object, like {{}}.")
    return value  # pyright: ignore[reportUnknownVariableType]


def _sampling(given: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    flag = "--override-generation-config"
    found = _object(flag, given["override_generation_config"])
    for name, value in found.items():
        if name not in _SAMPLING:
            raise UsageError(f"{flag} takes {', '.join(_SAMPLING)}; not {name!r}.")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1 <= value < 1e9:
            raise UsageError(f"{flag}: {name} must be a number.")
    found |= {name: given[name] for name in _SAMPLING if given[name] is not None}
    return tuple(found.items())


def _file_sampling(text: str) -> bool:
    if text not in ("auto", "vllm"):
        raise UsageError("--generation-config takes auto (the model's file) or vllm (none).")
    return text == "auto"


def _variables(text: str | None, reasoning: str) -> str:
    found = _object("--chat-template-kwargs", text)
    if reasoning != "auto":
        found["enable_thinking"] = reasoning == "on"
    return json.dumps(found)


# ------------------------------------------------------------------------- logs


def _logs(given: Mapping[str, Any]) -> dict[str, Any]:
    asked: str = given["log_level"]
    level = _PYTHON_LEVELS.get(asked, asked)
    verbosity: int | None = given["verbosity"]
    if verbosity is not None:
        level = _LLAMA_LEVELS[verbosity] if verbosity < len(_LLAMA_LEVELS) else "debug"
    if given["verbose"]:
        level = "debug"
    if given["log_disable"]:
        level = "error"
    except_ = split(given["log_access_except"])
    return {
        "log_level": level,
        "log_format": "json" if given["log_jsonl"] else given["log_format"],
        "log_file": given["log_file"],
        "log_access": not given["no_log_access"],
        "log_access_except": tuple(except_) or Options().log_access_except,
        "log_requests": (given["log_requests"] or given["log_prompts"])
        and not given["no_log_requests"],
        "log_prompts": given["log_prompts"] and not given["no_log_requests"],
    }
