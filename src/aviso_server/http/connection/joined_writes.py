"""A transport that sends the head of an answer together with what follows it."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["JoinedWrites"]


class JoinedWrites:
    """One system call instead of two: uvicorn writes the head and the body of an answer separately.

    A head waits until the next write or until the end of this turn of the event loop, whichever comes first.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Send bytes, and a waiting head before them."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Hang up after everything was sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
