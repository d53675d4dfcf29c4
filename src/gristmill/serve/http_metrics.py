"""Counters of HTTP exchanges, by the names that vLLM's instrumentation has."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from starlette.types import Scope

NOT_COUNTED = frozenset({"/metrics", "/health", "/v1/health", "/ping", "/version"})
"""Routes that machines ask by the second: left out there, so left out here."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 30, 60)


class HttpMetrics:
    """Every label has few values: a route is its template, a status its hundred."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "HTTP requests by route, method and class of status.",
            ("handler", "status", "method"),
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From a request's head to the last byte of its answer, by route.",
            ("handler", "method"),
            registry=registry,
            buckets=(0.1, 0.5, 1),
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "The same of all routes, in finer steps.",
            registry=registry,
            buckets=_FINE,
        )
        self._in = Summary(
            "http_request_size_bytes",
            "Declared length of requests' bodies.",
            ("handler",),
            registry=registry,
        )
        self._out = Summary(
            "http_response_size_bytes",
            "Length of answers' bodies.",
            ("handler",),
            registry=registry,
        )

    def count(self, route: str, scope: Scope, status: int, seconds: float, sent: int) -> None:
        """An exchange is over."""
        if route in NOT_COUNTED:
            return
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(route, f"{status // 100}xx", method).inc()
        self._seconds.labels(route, method).observe(seconds)
        self._fine.observe(seconds)
        self._in.labels(route).observe(_declared(scope))
        self._out.labels(route).observe(sent)


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:15])
    return 0
