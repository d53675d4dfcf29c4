"""Where the server listens: a TCP port or a Unix socket, taken before anything slow is begun."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass

from gristmill.errors import ResourceError
from gristmill.options import Options

BACKLOG = 2048


@dataclass(frozen=True)
class Listener:
    """A listening socket; ``path`` and ``inode`` of its file if it is a Unix socket's."""

    socket: socket.socket
    path: str | None = None
    inode: int = 0

    def remove(self) -> None:
        """Removes the socket's file, if it is still ours. Call it before the process ends."""
        if self.path is None:
            return
        try:
            if os.lstat(self.path).st_ino == self.inode:
                os.unlink(self.path)
        except OSError:
            return  # somebody else has removed it


def listen(options: Options) -> Listener:
    """What the options ask for. Raises ResourceError naming it and the way to another."""
    if options.uds is not None:
        return bind_unix(options.uds, options.uds_mode)
    return Listener(bind(options.host, options.port))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on a port.

    Raises: ResourceError naming the port and the way to another.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ResourceError(
            f"The host '{host}' is not an address of this machine: {error}."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ResourceError(
            f"Port {port} on {host} cannot be used ({error.strerror}); choose another with "
            "--port, or --port 0 for any free one."
        ) from None
    listener.setblocking(False)
    return listener


def bind_unix(path: str, mode: int | None = None) -> Listener:
    """A listening Unix socket. A file that a dead server left behind is taken over.

    Raises: ResourceError if somebody answers there, or if it is no socket.
    """
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The file never has other permissions than those asked for, not even for a moment.
    before = os.umask(0o777 & ~mode) if mode is not None else None
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        inode = os.lstat(path).st_ino
    except OSError as error:
        listener.close()
        raise ResourceError(f"The Unix socket '{path}' cannot be made: {error.strerror}.") from None
    finally:
        if before is not None:
            os.umask(before)
    listener.setblocking(False)
    return Listener(listener, os.path.abspath(path), inode)


def _clear(path: str) -> None:
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ResourceError(f"'{path}' is there and is no socket; choose another path for --uds.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise ResourceError(
                f"The Unix socket '{path}' is there and cannot be used: {error.strerror}."
            ) from None
    raise ResourceError(f"Another server answers on the Unix socket '{path}'.")
