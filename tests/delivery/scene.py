"""What the tests of delivery share: a hub on a real log, and readers that can stop reading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aviso_server.delivery.clients import ClientWriter, Watcher
from aviso_server.delivery.hub import Hub, Pace
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch, Follower, Log, Lost, StreamState, Subscription
from aviso_server.log.memory import MemoryLog
from aviso_server.model.event_type import EventType
from aviso_server.model.notification import Box, Notification
from aviso_server.model.times import Span
from aviso_server.store import Store
from tests.harness.patience import PATIENCE
from tests.harness.sse import FRAME, Frame
from tests.model.event_types import event_type

__all__ = ["TIDE", "FailingLog", "Reader", "hub_on", "join", "publish", "roomy", "settled"]

TIDE = event_type("tide", {"port": "StringHandler", "level": "IntHandler"}, base="tides", order=["port", "level"])


class Reader:
    """The send callable of an ASGI server with one client at its other end, who may stop reading or vanish."""

    def __init__(self) -> None:
        self.received = b""
        self.chunks = 0
        self.ended = False
        self.gone = False
        self.hung_up = False
        self._reads = asyncio.Event()
        self._reads.set()

    async def send(self, message: Any) -> None:
        """Take a message, at once unless the client has stopped reading."""
        if self.gone:
            raise ConnectionResetError("the client has left")
        if not self._reads.is_set():
            await self._reads.wait()
        if self.hung_up:
            return
        assert not self.ended, "nothing may follow the last chunk"
        assert message["type"] == "http.response.body"
        self.received += message["body"]
        self.chunks += 1
        self.ended = not message["more_body"]

    def stop(self) -> None:
        """Read no more."""
        self._reads.clear()

    def resume(self) -> None:
        """Read on."""
        self._reads.set()

    def hang_up(self) -> None:
        """The server has lost patience with the client: whatever it sends from now on goes nowhere."""
        self.hung_up = True
        self._reads.set()

    @property
    def frames(self) -> list[Frame]:
        """All frames so far; what arrived must consist of whole frames."""
        found = [Frame(each[1].decode(), json.loads(each[2]), each[0], 0.0) for each in FRAME.finditer(self.received)]
        assert b"".join(frame.raw for frame in found) == self.received
        return found

    @property
    def kinds(self) -> list[str]:
        """The kinds of the frames, heartbeats left out."""
        return [frame.kind for frame in self.frames if frame.event != "heartbeat"]

    @property
    def heartbeats(self) -> int:
        """How many signs of life came."""
        return sum(frame.event == "heartbeat" for frame in self.frames)

    @property
    def sequences(self) -> list[int]:
        """The sequences of the notifications in the order of arrival."""
        return [frame.data["sequence"] for frame in self.frames if frame.kind == "notification"]

    @property
    def reason(self) -> str | None:
        """Why the stream was closed; None if the last frame does not say so."""
        last = self.frames[-1:]
        return last[0].data["reason"] if last and last[0].event == "connection-closing" and self.ended else None


class FailingLog(MemoryLog):
    """A log in memory some of whose calls fail while their names are in `broken`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.broken: set[str] = set()
        self.reads = 0

    async def read(self, stream: str, start: int, end: int, limit: int, box: Box | None = None) -> Batch:
        """Fails as a disk would."""
        self._check("read")
        self.reads += 1
        return await super().read(stream, start, end, limit, box)

    async def state(self, stream: str) -> StreamState:
        """Fails as a broker would."""
        self._check("state")
        return await super().state(stream)

    def follow(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """Fails as a broker would, now or later through `lose`."""
        self._check("follow")
        return self._followers.add(stream, follower, lost)

    def lose(self, stream: str) -> None:
        """Cut the live feed of a stream, as a broker that went away would."""
        self._followers.lose(stream, "the broker went away")

    async def first_since(self, stream: str, time: int) -> int:
        """Fails as a disk would."""
        self._check("first_since")
        return await super().first_since(stream, time)

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise LogUnavailable(f"{name}: the disk is on fire")


def roomy() -> MemoryLog:
    """A log in memory that forgets nothing in a test."""
    return MemoryLog(max_history_per_topic=1_000_000)


@asynccontextmanager
async def hub_on(log: Log, **pace: Any) -> AsyncIterator[Hub]:
    """A hub on a log, both running inside the block."""
    await log.open()
    hub = Hub(Store(log), "http://localhost", Pace(**pace))
    hub.start()
    try:
        yield hub
    finally:
        await hub.stop()
        await log.close()


async def join(
    hub: Hub,
    start: Span | None = None,
    cap: int | None = None,
    reader: Reader | None = None,
    event_type: EventType = TIDE,
    **wanted: Any,
) -> tuple[Watcher, Reader]:
    """Open a watch as the HTTP route does, without its opening frame."""
    reader = reader or Reader()
    watcher = await hub.watcher(
        event_type.compile(wanted, "watch"), ClientWriter(reader.send, reader.hang_up), "the-request"
    )
    if start is None:
        watcher.go_live()
    else:
        watcher.go_back(start, cap)
    hub.begin(watcher)
    return watcher, reader


async def publish(
    log: Log, count: int = 1, size: int = 0, port: str = "oslo", level: int = 3
) -> Sequence[Notification]:
    """Store some notifications in one go."""
    draft = TIDE.check({"port": port, "level": level}, "x" * size)
    return await log.append_many([draft] * count)


async def settled(condition: Any, seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
