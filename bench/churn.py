"""Clients of every kind, good and bad, that come and go: the load of a soak."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

__all__ = ["Churn"]

PORTS = ["dover", "hull", "leith", "oban", "wick"]
_GIVE_UP = 10.0  # seconds without an answer


class Churn:
    """Publishers, watchers, replays, slow readers and clients that talk nonsense, until told to stop."""

    def __init__(self, host: str, port: int, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.connections = 0  # that were opened in the last run
        self._host = host
        self._port = port
        self._chance = random.Random(seed)
        self._running = True
        self._last = 0

    async def run(self, seconds: float, connections: int = 0) -> None:
        """Keep everybody busy for so long and for so many connections, then let them finish."""
        self._running = True
        self.connections = 0
        roles: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (3, self._publish),
            (12, self._watch),
            (3, self._replay),
            (4, self._read_slowly),
            (3, self._talk_nonsense),
        ]
        tasks = [asyncio.create_task(self._again(role)) for count, role in roles for _ in range(count)]
        await asyncio.sleep(seconds)
        while self.connections < connections:
            await asyncio.sleep(0.05)
        self._running = False
        await asyncio.gather(*tasks)

    async def _again(self, role: Callable[[], Awaitable[None]]) -> None:
        while self._running:
            with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
                await role()

    async def _publish(self) -> None:
        reader, writer = await self._connect()
        try:
            for _ in range(200):
                if not self._running:
                    return
                size = self._chance.choice([10, 200, 200, 2_000, 60_000])
                writer.write(_post("notification", "tide", self._identifier(), payload="x" * size))
                status = await _answer(reader)
                self._expect("publish", status, {200})
                self._last += status == 200
                await asyncio.sleep(self._chance.expovariate(100))
        finally:
            await _leave(writer)

    async def _watch(self) -> None:
        start: dict[str, str] = {}
        if self._chance.random() < 0.4:
            start = {"from_id": str(max(1, self._last - self._chance.randrange(500)))}
        wanted: dict[str, Any] = {"port": self._chance.choice(PORTS)}
        if self._chance.random() < 0.5:
            wanted["level"] = {"gte": self._chance.randrange(100)}
        await self._stream("watch", wanted, start, self._chance.uniform(0.1, 3.0))

    async def _replay(self) -> None:
        start = {"from_id": str(max(1, self._last - self._chance.randrange(2_000)))}
        await self._stream("replay", {"port": self._chance.choice(PORTS)}, start, self._chance.uniform(0.2, 5.0))

    async def _stream(self, operation: str, wanted: dict[str, Any], start: dict[str, str], seconds: float) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(_post(operation, "tide", wanted, **start))
            async with asyncio.timeout(_GIVE_UP):
                status = int((await reader.readline()).split()[1])
            self._expect(operation, status, {200})
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while chunk := await reader.read(65536):
                        self.counts["notifications"] += chunk.count(b'"specversion"')
        finally:
            await _leave(writer, abruptly=self._chance.random() < 0.5)

    async def _read_slowly(self) -> None:
        """Open a stream, read nothing for a while, then read on or vanish."""
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            self.connections += 1
            await loop.sock_connect(client, (self._host, self._port))
            await loop.sock_sendall(
                client, _post("watch", "tide", {"port": "*"}, from_id=str(max(1, self._last - 200)))
            )
            self.counts["slow"] += 1
            await asyncio.sleep(self._chance.uniform(0.5, 3.0))
            if self._chance.random() < 0.5:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._chance.uniform(0.2, 2.0)):
                        while await loop.sock_recv(client, 16384):
                            await asyncio.sleep(0.01)
            else:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _talk_nonsense(self) -> None:
        name, request, statuses = self._chance.choice(_NONSENSE)
        reader, writer = await self._connect()
        try:
            writer.write(request)
            if statuses:
                self._expect(name, await _answer(reader), statuses)
            else:
                self.counts[name] += 1
                await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        finally:
            await _leave(writer, abruptly=not statuses)
        await asyncio.sleep(self._chance.expovariate(20))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.connections += 1
        return await asyncio.wait_for(asyncio.open_connection(self._host, self._port), _GIVE_UP)

    def _identifier(self) -> dict[str, str]:
        return {"port": self._chance.choice(PORTS), "level": str(self._chance.randrange(100))}

    def _expect(self, name: str, status: int, statuses: set[int]) -> None:
        self.counts[name] += 1
        if status not in statuses and len(self.surprises) < 20:
            self.surprises.append(f"{name}: status {status}")


def _post(operation: str, event_type: str, identifier: dict[str, Any], **members: Any) -> bytes:
    body = json.dumps({"event_type": event_type, "identifier": identifier, **members}).encode()
    return _request("POST", f"/api/v1/{operation}", body)


def _request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read one answer to its end and return its status."""
    async with asyncio.timeout(_GIVE_UP):
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        await reader.readexactly(length)
    return int(head.split()[1])


async def _leave(writer: asyncio.StreamWriter, abruptly: bool = False) -> None:
    if abruptly:
        connection = writer.get_extra_info("socket")
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 2)


_NONSENSE: list[tuple[str, bytes, set[int]]] = [
    ("broken JSON", _request("POST", "/api/v1/notification", b'{"event_type": "tide", '), {400}),
    ("no JSON", _request("POST", "/api/v1/watch", b"\xff\xfe"), {400}),
    ("unknown member", _post("notification", "tide", {"port": "x"}, colour="red"), {400}),
    ("unknown field", _post("watch", "tide", {"ship": "x"}), {400}),
    ("unknown event type", _post("notification", "nobody", {"port": "x"}), {400}),
    ("bad start", _post("replay", "tide", {"port": "x"}, from_id="soon"), {400}),
    ("too large", _request("POST", "/api/v1/notification", b" " * 300_000), {413}),
    ("no such route", _request("GET", "/nowhere"), {404}),
    ("wrong method", _request("PUT", "/api/v1/notification", b"{}"), {404}),
    ("bad id", _request("DELETE", "/api/v1/admin/notification/nonsense"), {400}),
    ("health", _request("GET", "/health"), {200}),
    ("schema", _request("GET", "/api/v1/schema"), {200}),
    ("not HTTP", b"hello there\r\n\r\n", {400}),
    ("half a head", b"POST /api/v1/notification HTTP/1.1\r\nContent-Le", set()),
    ("half a body", b'POST /api/v1/watch HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"event', set()),
    ("nothing", b"", set()),
]
