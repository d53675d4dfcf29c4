"""Errors of this dialect that the others do not have."""

from __future__ import annotations

from gristmill.errors import RequestError


class NotOfferedError(RequestError):
    """The route is known, but this server was not started to answer it."""

    status = 501
    kind = "not_supported_error"
