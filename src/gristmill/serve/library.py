"""The models on this machine, as the server needs them: what their files say, coming and going.

The command line hands in the real one, over the model store; tests hand in a small fake.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request as HttpRequest

from gristmill.errors import RequestError
from gristmill.options import Options
from gristmill.serve.host import Model

Fetched = Callable[[int, int | None, str], None]
"""Told of a download: bytes done, bytes in all (None when unknown), what is being done. What it
raises ends the download."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a model's file says. ``metadata`` has the file's own keys, long arrays left out."""

    format: str
    architecture: str
    parameters: int
    encoding: str
    context: int | None = None
    width: int | None = None
    template: str = ""
    license: str = ""
    infill: bool = False
    """Whether it has tokens for filling in a middle."""
    metadata: Mapping[str, object] = field(default_factory=dict[str, object])


class Library(Protocol):
    """Everything here may take its time: not for the event loop."""

    def facts(self, model: Model) -> Facts | None:
        """What the file of a model says, None when there is none here (yet)."""
        ...

    def fetch(self, name: str, progress: Fetched) -> Model:
        """Brings a model into the store. Raises SourceError, UsageError, ResourceError."""
        ...

    def delete(self, model: Model) -> None:
        """Deletes a stored model's files. Raises SourceError, ResourceError."""
        ...


class ForbiddenError(RequestError):
    """The server does not do this for this client."""

    status = 403
    kind = "permission_error"


def check_may_change(http: HttpRequest, options: Options) -> None:
    """Raises ForbiddenError unless this client may change the model store.

    Without ``--allow-pull`` only clients of this machine may, or those with a key. A web page
    in a browser on this machine is not its user: without a key, requests that a page of another
    origin makes (they carry ``Origin``, or a host name that is not this machine's) are refused.
    """
    if options.allow_pull is False:
        raise ForbiddenError("This server does not fetch or delete models (--no-allow-pull).")
    if options.api_keys:
        return
    if options.allow_pull is None and not _local(options.host):
        raise ForbiddenError(
            "This server fetches and deletes models only for clients with a key, or when it is "
            "started with --allow-pull."
        )
    origin = http.headers.get("origin")
    if origin and origin not in options.allowed_origins and "*" not in options.allowed_origins:
        raise ForbiddenError(f"Pages of {origin[:100]} may not fetch or delete models here.")
    name = _host_name(http.headers.get("host", ""))
    if options.allow_pull is None and name and not _local(name):
        raise ForbiddenError(f"'{name[:100]}' is not a name of this machine.")


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def _local(host: str) -> bool:
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
