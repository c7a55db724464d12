"""The metrics port, served beside the main one in the same event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from aviso_server.http.connection.protocol import Connection
from aviso_server.http.metrics.exposition import MetricsApp
from aviso_server.http.service import Service

__all__ = ["metrics_served"]


class _Server(uvicorn.Server):
    """uvicorn without a say in signals: the main server decides when to leave."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@asynccontextmanager
async def metrics_served(service: Service, listening: socket.socket) -> AsyncIterator[None]:
    """Answer scrapes on this socket until the context is left."""
    server = _Server(
        uvicorn.Config(
            MetricsApp(service),
            http=Connection,
            loop="none",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="metrics")
    try:
        await server.listens.wait()
        yield
    finally:
        server.should_exit = True
        await serving
