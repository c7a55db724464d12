"""A sqlite log with an archive behind it lets go only of what is archived, and never numbers anything twice."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from aviso_server.archive.lake import align
from aviso_server.errors import LogDamaged
from aviso_server.log.base import StoragePolicy
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.store import Coverage
from tests.archive.memory_archive import MemoryArchive, archived_log, trimmed_to
from tests.delivery.scene import publish

SECOND = 10**9


@pytest.fixture(autouse=True)
def quick_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 10**18

    def __call__(self) -> int:
        return self.now


async def held(log: SqliteLog) -> list[int]:
    return [each.sequence for each in (await log.read("tides", 1, 10**6, 10**6)).notifications]


@pytest.mark.parametrize(
    "policy",
    [
        {"max_messages": 10},
        {"max_bytes": 10 * len('tides.oslo.3{"level":"3","port":"oslo"}""')},
        {"retention_ns": 3600 * SECOND},
    ],
    ids=lambda policy: str(*policy),
)
def test_only_what_is_archived_leaves(tmp_path: Path, policy: dict[str, int]) -> None:
    async def run() -> None:
        archive, clock = MemoryArchive(), Clock()
        log = archived_log(archive, tmp_path, clock, **policy)
        await log.open()
        await publish(log, 40)
        clock.now += 3601 * SECOND
        await publish(log, 10)
        await asyncio.sleep(0.2)
        assert await held(log) == list(range(1, 51)), "nothing is archived"
        await archive.take(log, 25)
        await trimmed_to(log, 25)
        await asyncio.sleep(0.1)
        assert await held(log) == list(range(26, 51))
        await archive.take(log)
        await trimmed_to(log, 40)
        await asyncio.sleep(0.1)
        assert await held(log) == list(range(41, 51))
        state = await log.state("tides")
        assert (state.first, state.last, state.count, state.trimmed) == (41, 50, 10, 40)
        await log.close()

    asyncio.run(run())


def test_a_long_backlog_leaves_little_by_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_ROWS", 100)

    async def run() -> None:
        archive = MemoryArchive()
        log = archived_log(archive, tmp_path, max_messages=7)
        await log.open()
        await publish(log, 2000)
        await archive.take(log)
        await trimmed_to(log, 1993)
        assert await held(log) == list(range(1994, 2001))
        await log.close()

    asyncio.run(run())


def test_superseded_ones_leave_little_by_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_ROWS", 10)

    async def run() -> None:
        archive = MemoryArchive()
        log = archived_log(archive, tmp_path, allow_duplicates=False)
        await log.open()
        for number in range(300):
            await publish(log, level=number % 7)
        await archive.take(log)
        await trimmed_to(log, 293)
        assert await held(log) == list(range(294, 301))
        await publish(log, level=99)
        await publish(log, level=99)
        await asyncio.sleep(0.1)
        assert await held(log) == list(range(294, 303)), "301 is superseded, and not archived"
        await archive.take(log)
        await trimmed_to(log, 301)
        assert await held(log) == [*range(294, 301), 302]
        await log.close()

    asyncio.run(run())


def test_without_an_archive_policies_hold_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        log = SqliteLog(tmp_path, {"tides": StoragePolicy(max_messages=5)})
        await log.open()
        await publish(log, 20)
        assert await held(log) == list(range(16, 21))
        await log.close()

    asyncio.run(run())


def test_an_archive_that_stays_behind_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        archive, clock = MemoryArchive(), Clock()
        policies = {"tides": StoragePolicy(max_messages=5)}
        log = SqliteLog(tmp_path, policies, clock, archived=archive.watermark, patience=600 * SECOND)
        await log.open()
        await publish(log, 20)
        clock.now += 599 * SECOND
        await asyncio.sleep(0.2)
        assert log.held_back == frozenset()
        clock.now += 2 * SECOND
        async with asyncio.timeout(60):
            while not log.held_back:
                await asyncio.sleep(0.02)
        assert log.held_back == {"tides"}
        await asyncio.sleep(0.2)
        await archive.take(log)
        await trimmed_to(log, 15)
        async with asyncio.timeout(60):
            while log.held_back:
                await asyncio.sleep(0.02)
        await log.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events == ["backend.sqlite.retention.waiting", "backend.sqlite.retention.resumed"]


def test_a_new_log_goes_on_after_the_archive(tmp_path: Path) -> None:
    async def run() -> None:
        log = SqliteLog(tmp_path / "lost", archived=lambda stream: 0)
        await log.open()
        await align(log, {"tides": Coverage(1, 500), "winds": Coverage(1, 7)}, "data/archive")
        state = await log.state("tides")
        assert (state.first, state.last, state.count, state.trimmed) == (501, 500, 0, 500)
        assert (await publish(log))[0].sequence == 501
        await align(log, {"tides": Coverage(1, 500)}, "data/archive")
        assert (await publish(log))[0].sequence == 502
        await log.close()
        again = SqliteLog(tmp_path / "lost", archived=lambda stream: 0)
        await again.open()
        assert (await again.state("tides")).last == 502
        assert (await again.state("winds")).last == 7
        await again.close()

    asyncio.run(run())


def test_a_restored_log_goes_on_after_the_archive(tmp_path: Path) -> None:
    async def run() -> None:
        log = SqliteLog(tmp_path, archived=lambda stream: 0)
        await log.open()
        await publish(log, 10)
        await align(log, {"tides": Coverage(1, 30)}, "data/archive")
        state = await log.state("tides")
        assert (state.first, state.last, state.trimmed) == (1, 30, 30)
        assert (await publish(log))[0].sequence == 31
        await log.close()

    asyncio.run(run())


def test_a_log_that_cannot_go_on_after_the_archive_is_refused() -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.open()
        await publish(log)
        await align(log, {"tides": Coverage(1, 1)}, "data/archive")
        with pytest.raises(LogDamaged, match="'tides' ends at sequence 1 in the log, but at 30 in the archive"):
            await align(log, {"tides": Coverage(1, 30)}, "data/archive")

    asyncio.run(run())
