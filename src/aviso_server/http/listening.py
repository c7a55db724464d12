"""The socket a server listens on, and what to say when there is none."""

from __future__ import annotations

import errno
import socket

__all__ = ["bind", "cannot_listen"]


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; OSError if that is not possible."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # accepted sockets inherit it: a peer that vanished is noticed even when nothing is sent
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def cannot_listen(section: str, host: str, port: int, error: OSError) -> str:
    """Why the host and port of this section of the configuration cannot be used, and what to do about it."""
    where = f"cannot listen on {host}:{port} ({section}.host and {section}.port)"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another process listens there; stop it, or set {section}.port to a free port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where}: this user may not; set {section}.port to 1024 or more"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{where}: {host} is no address of this machine; set {section}.host to one, or to 0.0.0.0 for all"
    return f"{where}: {error.strerror or error}"
