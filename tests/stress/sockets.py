"""Bare sockets for clients that behave badly, and what a process holds."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.harness import Server

__all__ = ["Listener", "open_sockets", "request", "reset", "resident_bytes"]

_ID = re.compile(rb'"id":"[a-z]+@(\d+)"')
_LONGEST_ID = 64


def request(operation: str, event_type: str, identifier: dict[str, Any], **members: Any) -> bytes:
    """A request as it goes over the wire."""
    body = json.dumps({"event_type": event_type, "identifier": identifier, **members}).encode()
    return f"POST /api/v1/{operation} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def reset(connection: socket.socket) -> None:
    """Hang up so that the other side gets a reset instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def open_sockets(server: Server) -> int:
    """How many sockets the process has open."""
    count = 0
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            count += str(descriptor.readlink()).startswith("socket:")
    return count


def resident_bytes(server: Server) -> int:
    """How much memory the process uses."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * 4096


class Listener:
    """A watcher that notes the sequences it receives and keeps nothing else, so that it can read a lot."""

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self._carry = b""

    async def open(self, server: Server, receive_buffer: int | None = None) -> None:
        """Connect and wait for the head of the answer and the opening frame."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((server.host, server.port))
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=65536)
        self._writer.write(request("watch", "tide", {}))
        await self._reader.readuntil(b"connection_established")

    async def read_to(self, last: int) -> None:
        """Read until this sequence has come."""
        while not self.sequences or self.sequences[-1] < last:
            chunk = await self._reader.read(1 << 20)
            assert chunk, "the stream ended"
            self._note(chunk)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    def _note(self, chunk: bytes) -> None:
        # an id may be cut in two: what is searched again must not hold a whole one
        data = self._carry + chunk
        end = 0
        for found in _ID.finditer(data):
            self.sequences.append(int(found[1]))
            end = found.end()
        self._carry = data[max(end, len(data) - _LONGEST_ID) :]
