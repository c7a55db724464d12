"""Where a sqlite log writes, small commits in the event loop and all others in a thread, and who waits for its disk."""

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
from aviso_server.log.sqlite import writer
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.log.sqlite.work import SMALL_BYTES, SMALL_COMMIT
from aviso_server.model.notification import Notification
from tests.log.scenario import draft, in_event_loop, opened, sequences

THREAD = "aviso-log-writer"


class Places:
    """The threads that rows were inserted from."""

    def __init__(self, log: SqliteLog) -> None:
        self.names: list[str] = []
        assert log._opened is not None
        log._opened.connection.set_trace_callback(self._heard)

    def _heard(self, statement: str) -> None:
        if statement.startswith("INSERT INTO stream_"):
            self.names.append(threading.current_thread().name)


@in_event_loop
async def test_a_small_commit_runs_in_the_event_loop(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(1))  # makes the table
        places = Places(log)
        await asyncio.gather(*(log.append(draft(number)) for number in range(SMALL_COMMIT)))
        assert places.names == [threading.current_thread().name]


@in_event_loop
async def test_whatever_may_take_longer_runs_in_the_thread(tmp_path: Path) -> None:
    policies = {"tide": StoragePolicy(max_messages=2)}
    log = SqliteLog(tmp_path, policies)
    async with opened(log):
        await log.append(draft(1))
        await log.append(draft(1, stream="tide"))
        places = Places(log)
        await asyncio.gather(*(log.append(draft(number)) for number in range(SMALL_COMMIT + 1)))
        await log.append(draft(1, padding=SMALL_BYTES))
        await log.append_many([draft(number) for number in range(200)])
        await log.append(draft(1, stream="tide"))
        await log.append(draft(1, stream="new"))
        assert set(places.names) == {THREAD}


@in_event_loop
async def test_order_is_kept_between_event_loop_and_thread(tmp_path: Path) -> None:
    chance = random.Random(7)
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(0))
        heard: list[int] = []
        log.follow("mars", lambda fresh: heard.extend(each.sequence for each in fresh))
        places = Places(log)
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
        assert set(places.names) == {threading.current_thread().name, THREAD}, "or nothing was mixed here"


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
        self.held = ""  # the thread that is held up; all, if none is named

    def _force(self) -> None:
        self.threads.append(threading.current_thread().name)
        if self.held in ("", threading.current_thread().name):
            assert self.ready.wait(30)
        if self.error is not None:
            raise self.error
        self._real()


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every disk is too slow for the event loop, from the first commit on."""
    monkeypatch.setattr(writer, "SLOW_COMMIT", 0.0)


@in_event_loop
async def test_after_a_slow_commit_the_event_loop_does_not_wait_for_the_disk_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_COMMIT", 0.0)
    monkeypatch.setattr(writer, "CAUTION", 0.3)
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(1))  # makes the table
        disk = Disk(log)
        places = Places(log)
        for _ in range(3):
            await log.append(draft(1))
        here = threading.current_thread().name
        assert disk.threads == [here, THREAD, THREAD]
        await asyncio.sleep(0.4)
        await log.append(draft(1))
        assert disk.threads[-1] == here
        assert set(places.names) == {here}


@pytest.mark.usefixtures("slow_disk")
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
async def test_what_the_disk_failed_to_take_is_refused_and_so_is_everything_after_it(tmp_path: Path) -> None:
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
        await asyncio.sleep(1.2)  # longer than it takes to try again
        assert not log.connected
        assert heard == []
        assert await sequences(log, "mars") == [1]
    again = SqliteLog(tmp_path)
    async with opened(again):
        found = await sequences(again, "mars")
        assert found in ([1], [1, 2])
        assert (await again.append(draft(6))).sequence == found[-1] + 1


@pytest.mark.usefixtures("slow_disk")
@in_event_loop
async def test_retention_does_not_announce_what_is_on_its_way_to_the_disk(tmp_path: Path) -> None:
    clock = [10**9]
    log = SqliteLog(tmp_path, {"mars": StoragePolicy(retention_ns=10**9)}, clock=lambda: clock[0])
    async with opened(log):
        for number in range(2):
            await log.append(draft(number))
        disk = Disk(log)
        clock[0] += 2 * 10**9
        disk.ready.clear()
        waiting = log.append(draft(2))
        await asyncio.sleep(1.5)  # retention is due
        assert (await log.state("mars")).last == 2
        disk.ready.set()
        assert (await waiting).sequence == 3
        while (await log.state("mars")).first < 3:
            await asyncio.sleep(0.05)
        assert await sequences(log, "mars") == [3]


@in_event_loop
async def test_what_retention_did_does_not_take_back_what_was_stored_after_it(tmp_path: Path) -> None:
    clock = [10**9]
    log = SqliteLog(tmp_path, {"mars": StoragePolicy(retention_ns=10**9)}, clock=lambda: clock[0])
    async with opened(log):
        for number in range(3):
            await log.append(draft(number))
        disk = Disk(log)
        disk.held = THREAD
        clock[0] += 2 * 10**9
        disk.ready.clear()
        while THREAD not in disk.threads:  # retention is at work, and waits for the disk
            await asyncio.sleep(0.05)
        assert (await log.append(draft(3))).sequence == 4
        disk.ready.set()
        assert not await log.delete("tide", 9)  # the thread does that after it has told of retention
        state = await log.state("mars")
        assert (state.first, state.last, state.count) == (4, 4, 1)
