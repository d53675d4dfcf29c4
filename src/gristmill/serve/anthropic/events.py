"""Anthropic's named events, and its form of errors."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.serve.errors import error_body
from gristmill.serve.log import request_id
from gristmill.serve.stream import event, typed_event

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_form(inner: Mapping[str, object]) -> dict[str, object]:
    """``{"type": "error", "error": {"type", "message"}}`` for OpenAI's inner error object."""
    code = inner.get("code")
    status = code if isinstance(code, int) else 500
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = str(inner.get("message", ""))
    here = request_id.get() or None
    if inner.get("type") == "exceed_context_size_error":
        # The words by which this API's clients know that they must shorten the conversation.
        tokens, most = inner.get("n_prompt_tokens"), inner.get("n_ctx")
        message = f"prompt is too long: {tokens} tokens > {most} maximum. {message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": here}


class AnthropicEvents:
    """Events named by their ``type``; nothing after the last one."""

    media_type = "text/event-stream"

    def chunk(self, value: object) -> bytes:
        """``event: NAME`` and ``data: {"type": NAME, ...}``."""
        return typed_event(value)

    def alive(self) -> bytes:
        """A ping."""
        return event({"type": "ping"}, "ping")

    def failure(self, error: BaseException) -> bytes:
        """An error event; the stream ends with it."""
        inner = error_body(error)["error"]
        assert isinstance(inner, dict)
        return event(error_form(inner), "error")  # pyright: ignore[reportUnknownArgumentType]

    def end(self) -> bytes:
        """Nothing: ``message_stop`` was the end."""
        return b""
