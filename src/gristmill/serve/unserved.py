"""Routes that other servers have for models that do not generate."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gristmill.errors import NotFoundError


async def not_served(http: HttpRequest) -> Response:
    """404 that says why."""
    del http
    raise NotFoundError(
        "This server generates text only: embeddings, scores and rankings are not served."
    )
