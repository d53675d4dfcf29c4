"""One tree of typed errors.

Every error that a person can cause is a ``GristmillError``: its message is one clear
sentence that says what, where, and what is allowed. The command line prints it and exits
with ``exit_code``; the server answers with ``status`` and ``kind``.
"""

from __future__ import annotations


class GristmillError(Exception):
    """Anything that went wrong for a reason a person can act on."""

    status = 500
    kind = "server_error"
    exit_code = 1


class UsageError(GristmillError):
    """The command line or the environment asks for something that cannot be."""

    status = 400
    kind = "invalid_request_error"
    exit_code = 2


class ModelError(GristmillError):
    """A model cannot be served: its files, its metadata or its tensors."""


class FormatError(ModelError):
    """A model file is damaged, cut short or hostile."""


class UnsupportedError(ModelError):
    """The file is sound, but holds what this version does not serve."""


class SourceError(ModelError):
    """A model could not be found or fetched."""


class ResourceError(GristmillError):
    """The machine has not enough of something: memory, disk, a free port."""


class EngineError(GristmillError):
    """The engine failed; the process ends with this as its last line."""


class RequestError(GristmillError):
    """The client's request cannot be honoured. ``param`` names the field, if one is at fault."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextError(RequestError):
    """The prompt does not fit the context. Carries both numbers.

    ``counted`` False says that ``prompt_tokens`` is only the least it can be: a text far too
    long is not tokenised to its end.
    """

    kind = "exceed_context_size_error"

    def __init__(self, prompt_tokens: int, context: int, *, counted: bool = True) -> None:
        has = "has" if counted else "has at least"
        super().__init__(
            # Clients know this error of every server by its first words.
            f"This model's maximum context length is {context} tokens, for the prompt and its "
            f"answer together; the prompt {has} {prompt_tokens} tokens.",
            "input_tokens",
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class NotFoundError(RequestError):
    """No such model or item."""

    status = 404
    kind = "not_found_error"


class AuthError(RequestError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class OverloadError(GristmillError):
    """The queue is full, or the server is loading or closing. ``retry_after`` is seconds."""

    status = 503
    kind = "unavailable_error"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
