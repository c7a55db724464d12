"""Where a sqlite log commits: small commits in the event loop while the disk is quick, all others in a thread."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

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
async def test_after_a_slow_commit_the_event_loop_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteLog(tmp_path)
    async with opened(log):
        await log.append(draft(1))
        places = Places(log)
        monkeypatch.setattr(writer, "SLOW_COMMIT", 0.0)  # every disk is too slow
        monkeypatch.setattr(writer, "CAUTION", 0.3)
        for _ in range(3):
            await log.append(draft(1))
        here = threading.current_thread().name
        assert places.names == [here, THREAD, THREAD]
        await asyncio.sleep(0.4)
        await log.append(draft(1))
        assert places.names[-1] == here


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
