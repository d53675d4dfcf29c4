"""Routes about the server itself: health, version, metrics."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import gristmill
from gristmill.errors import OverloadError
from gristmill.serve.errors import JsonResponse, error_body
from gristmill.serve.state import State


async def health(http: HttpRequest) -> Response:
    """200 when requests are taken; else 503 with the reason, and the progress of a load."""
    state: State = http.app.state.gristmill
    try:
        state.open()
        _check_progress(state)
    except OverloadError as error:
        body = error_body(error)
        if state.starting and state.failure is None and not state.draining:
            progress = state.progress
            body["progress"] = {
                "stage": progress.stage,
                "done": progress.done,
                "total": progress.total,
                "fraction": round(progress.fraction, 4),
            }
        return JsonResponse(body, 503, {"Retry-After": str(error.retry_after)})
    return JsonResponse({"status": "ok"})


def _check_progress(state: State) -> None:
    """Raises OverloadError while an engine is in a step that does not come to its end."""
    limit = state.options.health_timeout
    for served in state.metrics.served:
        stalled: float = getattr(served.engine.stats(), "stalled", 0.0)
        if stalled > limit:
            raise OverloadError(
                f"The engine of '{served.names[0]}' has made no progress for {stalled:.0f} s.", 5
            )


async def version(_http: HttpRequest) -> Response:
    """The version of gristmill."""
    return JsonResponse({"version": gristmill.__version__})


async def metrics(http: HttpRequest) -> Response:
    """Prometheus' text format."""
    state: State = http.app.state.gristmill
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
