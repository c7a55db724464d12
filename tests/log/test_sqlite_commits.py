"""A sqlite log writes in one thread, which alone waits for the disk."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from aviso_server.errors import LogUnavailable
from aviso_server.log.base import StoragePolicy
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Notification
from tests.harness.patience import PATIENCE
from tests.log.scenario import Tidying, draft, in_event_loop, opened, sequences

THREAD = "aviso-log-writer"


class Places:
    """The threads that statements came from: those that write rows, or those that begin as given."""

    def __init__(self, log: SqliteLog, *beginnings: str) -> None:
        self.names: list[str] = []
        self._beginnings = beginnings or ("INSERT", "UPDATE", "DELETE", "COMMIT")
        assert log._opened is not None
        log._opened.connection.set_trace_callback(self._heard)

    def _heard(self, statement: str) -> None:
        if statement.startswith(self._beginnings):
            self.names.append(threading.current_thread().name)


@in_event_loop
async def test_whatever_is_written_is_written_in_the_thread(tmp_path: Path) -> None:
    policies = {"tide": StoragePolicy(max_messages=2)}
    log = SqliteLog(tmp_path, policies)
    async with opened(log):
        places = Places(log)
        await asyncio.gather(*(log.append(draft(number)) for number in range(200)))
        await log.append_many([draft(number) for number in range(200)])
        await log.append(draft(1, stream="tide"))
        await log.delete("mars", 1)
        await log.wipe("tide")
        assert places.names
        assert set(places.names) == {THREAD}


@in_event_loop
async def test_what_arrives_together_is_one_commit(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    async with opened(log):
        places = Places(log, "COMMIT")
        await asyncio.gather(*(log.append(draft(number)) for number in range(200)))
        assert len(places.names) == 1


@in_event_loop
async def test_order_is_kept_between_singles_and_batches(tmp_path: Path) -> None:
    chance = random.Random(7)
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(0))
        heard: list[int] = []
        log.follow("mars", lambda fresh: heard.extend(each.sequence for each in fresh))
        singles: list[asyncio.Future[Notification]] = []
        pairs: list[asyncio.Future[Sequence[Notification]]] = []
        for _ in range(300):
            if chance.random() < 0.3:
                pairs.append(asyncio.ensure_future(log.append_many([draft(1), draft(2)])))
            else:
                singles.append(log.append(draft(1)))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        alone = [each.sequence for each in await asyncio.gather(*singles)]
        together = [[each.sequence for each in pair] for pair in await asyncio.gather(*pairs)]
        count = 1 + len(alone) + 2 * len(together)
        assert alone == sorted(alone)
        assert together == sorted(together)
        assert all(second == first + 1 for first, second in together)
        assert sorted([*alone, *chain.from_iterable(together)]) == heard == list(range(2, count + 1))
        assert await sequences(log, "mars") == list(range(1, count + 1))


class Disk:
    """Stands between the log and its disk, which can be held up or fail."""

    def __init__(self, log: SqliteLog) -> None:
        assert log._opened is not None
        self._writer = log._opened.writer
        self._real = self._writer._force
        self.ready = threading.Event()
        self.ready.set()
        self.error: OSError | None = None
        self._writer._force = self._force
        self.threads: list[str] = []  # that have waited for it

    def _force(self) -> None:
        self.threads.append(threading.current_thread().name)
        assert self.ready.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self._real()


@in_event_loop
async def test_a_disk_that_hangs_holds_up_publishers_only_and_nobody_sees_what_is_not_on_it(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    async with opened(log):
        for number in range(2):
            await log.append(draft(number))
        disk = Disk(log)
        heard: list[int] = []
        log.follow("mars", lambda fresh: heard.extend(each.sequence for each in fresh))
        disk.ready.clear()
        waiting = [log.append(draft(number)) for number in range(10)]
        for _ in range(20):
            await asyncio.sleep(0.01)
        later = [log.append(draft(number)) for number in range(500)]
        await asyncio.sleep(0.05)
        assert not any(future.done() for future in (*waiting, *later))
        assert (await log.state("mars")).last == 2
        assert await sequences(log, "mars") == [1, 2]
        assert heard == []
        disk.ready.set()
        stored = await asyncio.gather(*waiting, *later)
        assert [each.sequence for each in stored] == heard == list(range(3, 513))
        assert await sequences(log, "mars") == list(range(1, 513))


@in_event_loop
async def test_what_the_disk_failed_to_take_is_refused_and_so_is_everything_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidying = Tidying(monkeypatch)
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(1))
        disk = Disk(log)
        heard: list[Notification] = []
        log.follow("mars", heard.extend)
        disk.error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(LogUnavailable, match=r"disk has failed.*Input/output error"):
            await log.append(draft(2))
        disk.error = None  # a second attempt would succeed, but the bytes of the first are lost
        for attempt in (log.append(draft(3)), log.append_many([draft(4), draft(5)]), log.wipe("mars")):
            with pytest.raises(LogUnavailable, match="until a restart"):
                await attempt
        await tidying.twice()
        assert not log.connected
        assert heard == []
        assert await sequences(log, "mars") == [1]
    again = SqliteLog(tmp_path)
    async with opened(again):
        found = await sequences(again, "mars")
        assert found in ([1], [1, 2])
        assert (await again.append(draft(6))).sequence == found[-1] + 1


@in_event_loop
async def test_retention_does_not_announce_what_is_on_its_way_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tidying(monkeypatch)
    clock = [10**9]
    log = SqliteLog(tmp_path, {"mars": StoragePolicy(retention_ns=10**9)}, clock=lambda: clock[0])
    async with opened(log):
        for number in range(2):
            await log.append(draft(number))
        disk = Disk(log)
        clock[0] += 2 * 10**9
        disk.ready.clear()
        waiting = log.append(draft(2))
        await asyncio.sleep(0.2)  # retention is due ten times over
        assert (await log.state("mars")).last == 2
        disk.ready.set()
        assert (await waiting).sequence == 3
        while (await log.state("mars")).first < 3:
            await asyncio.sleep(0.05)
        assert await sequences(log, "mars") == [3]
