"""How the tests connect the published client, and a server that keeps its address over restarts."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyaviso import Anonymous, AvisoClient

from tests.harness import Server

__all__ = ["connect", "server_with_steady_address"]


def connect(server: Server, **settings: Any) -> AvisoClient:
    """A client without credentials; a request that hangs is an error and not a test that hangs."""
    return AvisoClient(**{"base_url": server.url, "auth": Anonymous(), "timeout": 30.0, **settings})


def server_with_steady_address(config: Mapping[str, Any], directory: Path) -> Server:
    """A server, not started yet, that has the same port each time it is started."""
    port = _port_that_nobody_is_given()
    application = {**config["application"], "port": port}
    return Server({**config, "application": application}, directory)


def _port_that_nobody_is_given() -> int:
    """A free port outside the range that the system gives out, so that it is still free after a restart."""
    for _ in range(100):
        port = random.randrange(15000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port between 15000 and 30000")
