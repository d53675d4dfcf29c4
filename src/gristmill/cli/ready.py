"""What a person sees once the model is served: one block, and a request to paste."""

from __future__ import annotations

import ipaddress
import json
import shlex
import socket
from typing import TYPE_CHECKING, Any

import click

import gristmill
from gristmill.options import Options

if TYPE_CHECKING:
    from gristmill.engine.loader import Loaded
    from gristmill.serve.host import Host
    from gristmill.serve.protocol import Served


def warn_if_open(options: Options) -> None:
    """Says so when anybody on the network may use the server."""
    if options.api_keys or options.uds is not None or _loopback(options.host):
        return
    click.echo(
        f"gristmill: warning: {options.host} can be reached from other machines and no key is "
        "asked for; --api-key sets one.",
        err=True,
    )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url(options: Options, address: Any) -> str:
    """Where a client on this machine reaches the server."""
    if options.uds is not None:
        return f"http://localhost{options.root_path}"
    host, port = str(address[0]), int(address[1])
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname() if options.api_keys else "127.0.0.1"
    scheme = "http" if options.tls is None else "https"
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{place}:{port}{options.root_path}"


def _shown(options: Options, at: str) -> str:
    return at if options.uds is None else f"{at} on the Unix socket {options.uds}"


def block(
    options: Options, loaded: Loaded, served: Served, address: Any, seconds: float, host: Host
) -> str:
    """The ready block."""
    plan, meta = loaded.plan, served.meta
    facts = plan.facts
    at = url(options, address)
    rows = [
        (
            "model",
            f"{facts.name} ({facts.architecture}, {meta['encoding']}, "
            f"{size(int(str(meta['size'])))})",
        ),
        ("names", ", ".join(served.names) + (" and any other" if options.any_model else "")),
        (
            "memory",
            f"weights {size(facts.weights_bytes)}; KV cache up to {plan.kv_tokens:,} "
            f"tokens ({size(plan.kv_bytes)}, {plan.kv_dtype}), taken as needed",
        ),
        ("context", f"{plan.context:,} tokens a request, {plan.max_running} requests at once"),
        ("machine", f"{facts.backend}, {facts.threads} threads"),
        *_others(options, host),
        ("ready", f"{_shown(options, at)} after {seconds:.1f} s"),
    ]
    lines = [f"gristmill {gristmill.__version__}"]
    lines += [f"  {label:<9}{text}" for label, text in rows]
    lines += [f"  {'note':<9}{note}" for note in plan.notes]
    return "\n".join([*lines, "", _curl(options, served, at), ""])


def store_block(options: Options, host: Host, address: Any) -> str:
    """The ready block of a server that has no model of its own."""
    rows = [*_others(options, host), ("ready", _shown(options, url(options, address)))]
    return "\n".join(
        [f"gristmill {gristmill.__version__}", *(f"  {label:<9}{text}" for label, text in rows), ""]
    )


def _others(options: Options, host: Host) -> list[tuple[str, str]]:
    """What else can be asked for."""
    others = [entry.names[0] for entry in host.entries if not entry.pinned]
    if not others and not options.all_models:
        return []
    names = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
    stay = "for ever" if host.keep is None else f"for {host.keep:g} s after their last use"
    rows = [("others", f"{names or 'none in the store yet'}: loaded when a request names them")]
    if host.budget is not None:
        rows.append(("", f"loaded {stay}; all models together take up to {size(host.budget)}"))
    return rows


def _curl(options: Options, served: Served, at: str) -> str:
    key = ' \\\n  -H "Authorization: Bearer $API_KEY"' if options.api_keys else ""
    if served.chat is None:
        path = "completions"
        body: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 64}
    else:
        path = "chat/completions"
        body = {"messages": [{"role": "user", "content": "Hello! Who are you?"}]}
    data = shlex.quote(json.dumps(body))
    if options.uds is not None:
        at = f"--unix-socket {shlex.quote(options.uds)} {at}"
    return f"curl {at}/v1/{path}{key} \\\n  -H 'Content-Type: application/json' -d {data}"


def size(count: int) -> str:
    """Bytes for people, in decimal units."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
