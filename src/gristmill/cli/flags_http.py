"""The flags of ``gristmill serve`` about its network side and its logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gristmill.cli.option import Size, option

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SECONDS = click.FloatRange(min=0)

HTTP: tuple[Callable[[Any], Any], ...] = (
    option(
        "Network",
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Address to serve; unix:///PATH is a Unix socket.",
    ),
    option(
        "Network",
        "--port",
        type=click.IntRange(0, 65535),
        metavar="N",
        default=8000,
        show_default=True,
        help="Port to serve; 0 takes a free one.",
    ),
    option("Network", "--uds", metavar="PATH", help="A Unix socket, instead of host and port."),
    option(
        "Network",
        "--uds-mode",
        metavar="OCTAL",
        help="Permissions of the Unix socket, as 660. Default: what the umask leaves.",
    ),
    option(
        "Network",
        "--root-path",
        "--api-prefix",
        default="",
        metavar="PREFIX",
        help="What stands before every path, as /llm; a proxy may have cut it off or not.",
    ),
    option(
        "Network",
        "--api-key",
        "api_keys",
        metavar="KEY",
        multiple=True,
        help="Ask for this key on every route but /health; may be repeated, or several separated "
        "by commas.",
    ),
    option(
        "Network",
        "--api-key-file",
        type=FILE,
        metavar="FILE",
        help="Keys from a file, one a line; # begins a comment. Read again on SIGHUP.",
    ),
    option(
        "Network",
        "--allowed-origins",
        "--cors-origins",
        "origins",
        metavar="ORIGINS",
        multiple=True,
        help="Web origins that browsers may call from: a JSON list, or separated by commas.",
    ),
    option(
        "Network",
        "--max-body-bytes",
        type=Size(),
        default="64M",
        show_default=True,
        help="Longest request body.",
    ),
    option(
        "Network",
        "--response-store-bytes",
        type=Size(least=0),
        default="64M",
        show_default=True,
        help="Memory for responses that previous_response_id can name; 0 keeps none.",
    ),
    option(
        "Network",
        "--h11-max-incomplete-event-size",
        "max_head_bytes",
        type=Size(),
        default="64K",
        show_default=True,
        help="Longest request line and headers together.",
    ),
    option(
        "Network",
        "--h11-max-header-count",
        "max_headers",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        metavar="N",
        help="Most headers of a request.",
    ),
    option(
        "Network",
        "--sse-ping-interval",
        "ping_interval",
        type=click.FloatRange(min=-1),
        default=15.0,
        show_default=True,
        metavar="SECONDS",
        help="Silence in a stream after which a comment is sent; -1: never.",
    ),
    option(
        "Network",
        "--health-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="A step without progress for so long turns /health to 503.",
    ),
    option(
        "Network",
        "--request-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        metavar="SECONDS",
        help="An answer that is not complete by then ends with an error.  [default: never]",
    ),
    option(
        "Network",
        "--shutdown-timeout",
        type=SECONDS,
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long running answers may still take after Ctrl-C or SIGTERM.",
    ),
    # ------------------------------------------------------------------- TLS
    option(
        "TLS",
        "--ssl-certfile",
        "--ssl-cert-file",
        "tls_certificate",
        type=FILE,
        metavar="FILE",
        help="The certificate and its chain, PEM; read again on SIGHUP.",
    ),
    option(
        "TLS",
        "--ssl-keyfile",
        "--ssl-key-file",
        "tls_key",
        type=FILE,
        metavar="FILE",
        help="Its private key, PEM. Default: in the certificate's file.",
    ),
    option("TLS", "--ssl-keyfile-password", "tls_password", metavar="TEXT", help="If encrypted."),
    option(
        "TLS",
        "--ssl-ca-certs",
        "tls_ca",
        type=FILE,
        metavar="FILE",
        help="Only clients with a certificate from these authorities are let in.",
    ),
    option(
        "TLS",
        "--ssl-cert-reqs",
        "tls_reqs",
        type=click.IntRange(0, 2),
        metavar="0|1|2",
        help="Certificates of clients: not asked for, checked if sent, required. "
        "Default: 2 with --ssl-ca-certs, else 0.",
    ),
    option("TLS", "--ssl-ciphers", "tls_ciphers", metavar="LIST", help="For TLS 1.2; OpenSSL's."),
)

LOGS: tuple[Callable[[Any], Any], ...] = (
    option(
        "Logs",
        "--log-level",
        "--uvicorn-log-level",
        type=click.Choice(["trace", "debug", "info", "warning", "error", "critical"]),
        default="info",
        show_default=True,
        help="How much is told on stderr.",
    ),
    option("Logs", "-v", "--verbose", "--log-verbose", is_flag=True, help="--log-level debug."),
    option(
        "Logs",
        "-lv",
        "--verbosity",
        "--log-verbosity",
        "verbosity",
        type=click.IntRange(min=0),
        metavar="N",
        help="llama-server's levels: 1 error, 2 warning, 3 info, 4 and above debug.",
    ),
    option(
        "Logs",
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines for people, or a JSON object each.",
    ),
    option("Logs", "--log-jsonl", is_flag=True, help="--log-format json."),
    option("Logs", "--log-file", metavar="FILE", help="A file for the log, instead of stderr."),
    option("Logs", "--log-disable", is_flag=True, help="Errors only."),
    option(
        "Logs",
        "--enable-log-requests/--no-enable-log-requests",
        "log_requests",
        default=False,
        help="A line at the end of each answer: tokens, times, why it ended. Never its text.",
    ),
    option(
        "Logs",
        "--disable-log-requests",
        "no_log_requests",
        is_flag=True,
        help="--no-enable-log-requests.",
    ),
    option(
        "Logs",
        "--log-prompts",
        is_flag=True,
        help="The line of an answer holds the prompt too (and is written).",
    ),
    option(
        "Logs",
        "--disable-uvicorn-access-log",
        "no_log_access",
        is_flag=True,
        help="No line for each HTTP request.",
    ),
    option(
        "Logs",
        "--disable-access-log-for-endpoints",
        "log_access_except",
        metavar="PATHS",
        multiple=True,
        help="Paths whose good answers get no line, separated by commas. "
        "Default: /health,/v1/health,/ping,/metrics",
    ),
)
