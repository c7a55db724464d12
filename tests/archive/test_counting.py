"""Counting the past: as many as a replay brings, each once, wherever archive and log meet."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from aviso_server.delivery.hub import Hub
from aviso_server.errors import LogUnavailable
from aviso_server.http.routes.explanation import Counted, count
from aviso_server.log.sqlite.writer import TRIM_SECONDS
from aviso_server.model.times import Span
from tests.archive.memory_archive import MemoryArchive, archived_hub, archived_log, replayed, trimmed_to
from tests.delivery.scene import TIDE, hub_on, publish, roomy, settled

pytestmark = pytest.mark.usefixtures("quick_retention")

HOUR = 3600 * 10**9


@pytest.fixture
def quick_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRIM_SECONDS == 1.0
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)


class Minutes:
    """A clock that goes on by twenty minutes with every look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += HOUR // 3
        return self.now


async def counted(hub: Hub, since: int = 0, **wanted: Any) -> Counted:
    return await count(hub.store, TIDE.compile(wanted, "watch"), since, HOUR)


@pytest.mark.parametrize("archived", [0, 1, 55, 99, 100])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_count_is_what_a_replay_brings(tmp_path: Path, archived: int, seed: int) -> None:
    """Deletes on both sides, any boundary, any start; the intervals are those of the notifications' times."""

    async def run() -> None:
        chance, archive = random.Random(seed), MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, Minutes(), max_messages=30), archive) as hub:
            times = [
                (await publish(hub.store.log, port=chance.choice("ab"), level=each))[0].time for each in range(100)
            ]
            if archived:
                await archive.take(hub.store.log, archived)
                await trimmed_to(hub.store.log, min(archived, 70))
            for sequence in chance.sample(range(1, 101), 15):
                assert await hub.store.delete("tides", sequence)
            for since in (0, *chance.sample(times, 4), times[-1] + 1):
                for wanted in ({}, {"port": "a"}, {"level": {"gte": chance.randrange(100)}}):
                    reader = await replayed(hub, Span(from_time=since), **wanted)
                    found = await counted(hub, since, **wanted)
                    assert found.tally.total == len(reader.sequences)
                    expected: dict[int, int] = {}
                    for sequence in reader.sequences:
                        hour = times[sequence - 1] // HOUR
                        expected[hour] = expected.get(hour, 0) + 1
                    assert found.tally.times == expected
                    assert found.last == 100

    asyncio.run(run())


def test_what_is_archived_is_counted_there_and_the_rest_in_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path), archive) as hub:
            await publish(hub.store.log, 50)
            assert (await counted(hub)).sources == ["log"]
            await archive.take(hub.store.log)
            found = await counted(hub)
            assert (found.tally.total, found.sources, archive.counts) == (50, ["archive"], [(1, 50)])
            await publish(hub.store.log, 5)
            found = await counted(hub)
            assert (found.tally.total, found.sources, found.first, found.last) == (55, ["archive", "log"], 1, 55)
            assert archive.reads == [], "rows stay where they are"

    asyncio.run(run())


def test_a_whole_log_stands_in_for_an_archive_that_is_away(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=20), archive) as hub:
            await publish(hub.store.log, 10)
            await archive.take(hub.store.log)
            archive.down = True
            found = await counted(hub)
            assert (found.tally.total, found.sources, archive.counts) == (10, ["log"], [])
            archive.down = False
            await publish(hub.store.log, 40)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 30)
            archive.down = True
            with pytest.raises(LogUnavailable, match="on strike"):
                await counted(hub)

    asyncio.run(run())


def test_without_an_archive() -> None:
    async def run() -> None:
        async with hub_on(roomy()) as hub:
            assert (await counted(hub)).tally.total == 0
            await publish(hub.store.log, 2500)
            found = await counted(hub)
            assert (found.tally.total, found.sources) == (2500, ["log"])

    asyncio.run(run())


def test_a_count_that_is_cancelled_lets_go(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path), archive) as hub:
            await publish(hub.store.log, 20_000)
            before = asyncio.all_tasks()
            counting = asyncio.create_task(counted(hub))
            await settled(lambda: len(asyncio.all_tasks()) > len(before) + 1)  # it reads
            counting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await counting
            await settled(lambda: asyncio.all_tasks() == before)

    asyncio.run(run())
