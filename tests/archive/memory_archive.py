"""An archive in this process: lists of notifications, filled when a test says so, and a log that relies on it."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aviso_server.delivery.clients import ClientWriter, Replay
from aviso_server.delivery.hub import Hub, Pace
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Log, StoragePolicy
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.explain import Tally
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.times import Span
from aviso_server.store import NOTHING, Coverage, Store, Version
from tests.delivery.scene import TIDE, Reader, settled

__all__ = ["MemoryArchive", "archived_hub", "archived_log", "replayed", "trimmed_to"]


class MemoryArchive:
    """Keeps the promises of an archive, without Spark."""

    def __init__(self, run: int = 50) -> None:
        self.held: dict[str, list[Notification]] = {}
        self.reach: dict[str, int] = {}  # stream -> the last sequence covered
        self.down = False
        self.reads: list[tuple[int, int]] = []
        self.counts: list[tuple[int, int]] = []
        self.open_reads = 0
        self._run = run

    async def take(self, log: Log, through: int | None = None) -> None:
        """Archive what the log has, up to a sequence."""
        for stream in await log.streams():
            start, last = self.reach.get(stream, 0) + 1, (await log.state(stream)).last
            end = last if through is None else min(last, through)
            while start <= end:
                batch = await log.read(stream, start, end, 1000)
                self.held.setdefault(stream, []).extend(batch.notifications)
                start = batch.next
            self.reach[stream] = max(end, self.reach.get(stream, 0))

    def watermark(self, stream: str) -> int:
        return self.reach.get(stream, 0)

    async def coverage(self, stream: str, through: int = 0) -> Coverage:
        return Coverage(1, self.reach[stream]) if self.reach.get(stream) else NOTHING

    async def version_at(self, stream: str, time: int) -> Version:
        return Version(0, self.reach[stream])

    async def streams(self) -> Sequence[str]:
        return sorted(self.reach)

    async def read(
        self, wanted: Filter, start: int, end: int, version: Version | None = None
    ) -> AsyncGenerator[Sequence[Notification], None]:
        self.reads.append((start, end))
        self.open_reads += 1
        try:
            self._check()
            while start <= end:
                found = [each for each in self.held.get(wanted.stream, []) if start <= each.sequence <= end][
                    : self._run
                ]
                if not found:
                    return
                start = found[-1].sequence + 1
                await asyncio.sleep(0)
                yield [each for each in found if wanted.matches(each)]
                self._check()
        finally:
            self.open_reads -= 1

    @property
    def reachable(self) -> bool:
        return not self.down

    async def count(self, wanted: Filter, start: int, end: int, unit: int, version: Version | None = None) -> Tally:
        self.counts.append((start, end))
        self._check()
        tally = Tally(unit)
        held = [each for each in self.held.get(wanted.stream, []) if start <= each.sequence <= end]
        tally.add([each for each in held if wanted.matches(each)])
        return tally

    async def first_since(self, stream: str, time: int, version: Version | None = None) -> int:
        self._check()
        held = self.held.get(stream, [])
        place = bisect_left(held, time, key=lambda each: each.time)
        return held[place].sequence if place < len(held) else self.reach[stream] + 1

    async def last_until(self, stream: str, time: int, version: Version | None = None) -> int:
        self._check()
        held = self.held.get(stream, [])
        place = bisect_right(held, time, key=lambda each: each.time)
        return held[place - 1].sequence if place else 0

    @asynccontextmanager
    async def deleting(self, stream: str, sequence: int) -> AsyncIterator[_Gone]:
        before = self.held.get(stream, [])
        self.held[stream] = [each for each in before if each.sequence != sequence]
        yield _Gone(len(before) > len(self.held[stream]))

    @asynccontextmanager
    async def wiping(self, stream: str, through: int) -> AsyncIterator[None]:
        self.held[stream] = [each for each in self.held.get(stream, []) if each.sequence > through]
        yield

    async def describe(self) -> dict[str, Any]:
        return {"state": "running", "reason": None, "streams": {}}

    def _check(self) -> None:
        if self.down:
            raise LogUnavailable("the archive cannot be read now: it is on strike")


class _Gone:
    def __init__(self, found: bool) -> None:
        self._found = found

    async def archived(self) -> bool:
        return self._found


def archived_log(archive: MemoryArchive, directory: Path, clock: Any = None, **policy: Any) -> SqliteLog:
    """A log on disk with a policy for the stream `tides`, which lets go only of what is on the archive."""
    more = {} if clock is None else {"clock": clock}
    return SqliteLog(directory, {"tides": StoragePolicy(**policy)}, archived=archive.watermark, **more)


@asynccontextmanager
async def archived_hub(log: Log, archive: MemoryArchive, **pace: Any) -> AsyncIterator[Hub]:
    """A hub on a log with an archive behind it, all running inside the block."""
    await log.open()
    hub = Hub(Store(log, archive), "http://localhost", Pace(**pace))
    hub.start()
    try:
        yield hub
    finally:
        await hub.stop()
        await log.close()
        await settled(lambda: archive.open_reads == 0)


async def replayed(hub: Hub, span: Span, reader: Reader | None = None, cap: int | None = None, **wanted: Any) -> Reader:
    """A replay as the HTTP route opens it, read to its end."""
    reader = reader or Reader()
    replay = await begin_replay(hub, span, reader, cap, **wanted)
    await settled(lambda: reader.ended)
    hub.release(replay)
    return reader


async def begin_replay(hub: Hub, span: Span, reader: Reader, cap: int | None = None, **wanted: Any) -> Replay:
    """A replay that has begun."""
    filter_ = TIDE.compile(wanted, "replay")
    end = await hub.store.end_of(filter_.stream, span, (await hub.store.log.state(filter_.stream)).last)
    replay = hub.replay(filter_, ClientWriter(reader.send, reader.hang_up), "the-request")
    replay.begin(span, end, cap)
    return replay


async def trimmed_to(log: Log, trimmed: int) -> None:
    """Wait until retention has done its work."""
    async with asyncio.timeout(60):
        while (await log.state("tides")).trimmed < trimmed:
            await asyncio.sleep(0.02)
