"""The sqlite log: the contract, its storage policies, and what only it does."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from aviso_server.errors import LogError, LogUnavailable
from aviso_server.log.base import KeyPolicy, Log, StoragePolicy, StreamState
from aviso_server.log.sqlite.database import connect
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.contract import LogContract, StoragePolicyContract
from tests.log.key_contract import KeyContract
from tests.log.scenario import EVERYTHING, Tidying, draft, everything, in_event_loop, opened, sequences, size, until

SECOND = 1_000_000_000


class TestContract(LogContract):
    def make(self, directory: Path) -> Log:
        return SqliteLog(directory / "log")


class TestKeys(KeyContract):
    def make_keyed(self, directory: Path, keys: KeyPolicy) -> Log:
        return SqliteLog(directory / "log", keys=keys)


class TestPolicies(StoragePolicyContract):
    def make_limited(self, directory: Path, policies: Mapping[str, StoragePolicy]) -> Log:
        return SqliteLog(directory / "log", policies)


# Commits


@in_event_loop
async def test_what_waits_together_is_committed_together(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        calls: list[int] = []
        log.follow("mars", lambda fresh: calls.append(len(fresh)))
        await asyncio.gather(*(log.append(draft(n)) for n in range(200)))
        assert sum(calls) == 200
        assert len(calls) <= 2, "the first may go ahead, the others follow as one"


@in_event_loop
async def test_an_answer_comes_after_the_commit_and_closing_leaves_one_file(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append(draft(1))
        # Another connection sees the answer's notification, through the write-ahead log.
        with sqlite3.connect(f"file:{tmp_path / 'log.sqlite'}?mode=ro", uri=True) as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert other.execute("SELECT name, last_sequence, count FROM catalogue").fetchall() == [("mars", 1, 1)]
        other.close()
        assert (tmp_path / "log.sqlite-wal").stat().st_size > 0
    assert not (tmp_path / "log.sqlite-wal").exists(), "closing checkpoints"


def test_connections_ask_for_every_commit_to_be_forced_to_disk(tmp_path: Path) -> None:
    connection = connect(tmp_path / "any.sqlite")
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


@in_event_loop
async def test_more_waiting_than_allowed_is_refused_and_later_accepted(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path, max_waiting=100)) as log:
        results = await asyncio.gather(*(log.append(draft(n)) for n in range(150)), return_exceptions=True)
        refused = [one for one in results if isinstance(one, LogUnavailable)]
        assert len(refused) == 50
        assert "100 notifications wait to be written and 100 may" in str(refused[0])
        alone, together = await asyncio.gather(
            log.append_many([draft(1)]), log.append_many([draft(n) for n in range(100)]), return_exceptions=True
        )
        assert isinstance(alone, list)
        assert isinstance(together, LogUnavailable)
        await log.append_many([draft(n) for n in range(150)])  # more than may wait, but nobody waits
        assert (await log.state("mars")).last == 251


@in_event_loop
async def test_one_that_cannot_be_stored_does_not_take_others_with_it(tmp_path: Path) -> None:
    broken = Draft("mars", "mars.\ud800", b"{}", b"null")
    async with opened(SqliteLog(tmp_path)) as log:
        first, refused, second = await asyncio.gather(
            log.append(draft(1)), log.append(broken), log.append(draft(2)), return_exceptions=True
        )
        assert isinstance(refused, LogError)
        assert isinstance(first, Notification)
        assert isinstance(second, Notification)
        with pytest.raises(LogError):
            await log.append_many([draft(3), broken])
        assert log.connected
        assert await everything(log, "mars") == [first, second]
        assert (await log.append(draft(4))).sequence == 3


@in_event_loop
async def test_many_more_than_one_statement_takes(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        drafts = [draft(n, box=Box(n, 0, n + 1, 1) if n % 3 == 0 else None) for n in range(1_379)]
        stored = await log.append_many(drafts)
        assert [(one.topic, one.payload, one.box) for one in stored] == [(d.topic, d.payload, d.box) for d in drafts]
        assert await everything(log, "mars", limit=500) == list(stored)


@in_event_loop
async def test_every_range_has_the_times_of_the_commits_that_it_is_from(tmp_path: Path) -> None:
    now = [0]
    async with opened(SqliteLog(tmp_path, clock=lambda: now[0])) as log:
        stored: list[int] = []  # times, by sequence - 1
        for now[0], together in ((100, 3), (200, 1), (300, 4), (300, 2), (400, 1)):
            await log.append_many([draft(number) for number in range(together)])
            stored += [now[0]] * together
        for deleted in (False, True):
            if deleted:
                assert await log.delete("mars", 6)
            for start in range(1, len(stored) + 1):
                for end in range(start, len(stored) + 1):
                    found = (await log.read("mars", start, end, 100)).notifications
                    kept = [number for number in range(start, end + 1) if not (deleted and number == 6)]
                    assert [(one.sequence, one.time) for one in found] == [(each, stored[each - 1]) for each in kept]


@in_event_loop
async def test_a_clock_that_goes_back_does_not_turn_times_back_even_after_wipe_and_restart(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path, clock=lambda: 100)) as log:
        await log.append(draft(1))
        await log.wipe("mars")
    async with opened(SqliteLog(tmp_path, clock=lambda: 50)) as log:
        assert (await log.append(draft(2))).time == 100


# Reading


@in_event_loop
async def test_reading_never_runs_in_the_event_loop_thread_and_lets_it_go_on(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append_many([draft(n, padding=300) for n in range(20_000)])
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.ensure_future(turn())
        batch = await log.read("mars", 1, EVERYTHING, 20_000)
        turning.cancel()
        assert len(batch.notifications) == 20_000
        assert turns > 10
        assert any(thread.name.startswith("aviso-log-reader") for thread in threading.enumerate())


@in_event_loop
async def test_reads_and_appends_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append_many([draft(n) for n in range(5_000)])

        async def read() -> int:
            return len(await everything(log, "mars", end=5_000, limit=1_000))

        found, stored = await asyncio.gather(
            asyncio.gather(*(read() for _ in range(8))), asyncio.gather(*(log.append(draft(n)) for n in range(500)))
        )
        assert found == [5_000] * 8
        assert len(stored) == 500


@in_event_loop
async def test_values_with_the_separator_of_joined_reads_come_back_unharmed(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        drafts = [Draft("mars", f"mars.{n}\x1f", b"{\x1f}", b"\x1f\x1f", Box(0, 0, n, n)) for n in range(5)]
        drafts.append(draft(9))
        stored = await log.append_many(drafts)
        for limit in (2, 100):
            assert await everything(log, "mars", limit=limit) == list(stored)
        await log.delete("mars", 2)
        assert await sequences(log, "mars", limit=2) == [1, 3, 4, 5, 6]


@in_event_loop
async def test_a_batch_of_large_notifications_is_cut_to_bounded_memory(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        for number in range(12):
            await log.append(draft(number, padding=4_000_000))
        batch = await log.read("mars", 1, EVERYTHING, 1_000)
        assert 1 <= len(batch.notifications) <= 4
        assert batch.next == batch.notifications[-1].sequence + 1
        assert await sequences(log, "mars", limit=1_000) == list(range(1, 13))


@in_event_loop
async def test_a_box_is_used_to_leave_out_what_lies_elsewhere(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append_many([draft(n, box=Box(n, n, n + 0.5, n + 0.5) if n % 2 else None) for n in range(80)])
        found = await everything(log, "mars", limit=3, box=Box(10.5, 10.5, 15, 15))
        assert [one.sequence for one in found] == [12, 14, 16]


@in_event_loop
async def test_dates_are_found_among_many_equal_times(tmp_path: Path) -> None:
    now = [0]
    async with opened(SqliteLog(tmp_path, clock=lambda: now[0])) as log:
        for moment in (10, 20, 20, 30):
            now[0] = moment
            await log.append_many([draft(n) for n in range(100)])
        assert [await log.first_since("mars", at) for at in (0, 10, 11, 20, 21, 30, 31)] == [
            1,
            1,
            101,
            101,
            301,
            301,
            401,
        ]
        assert [await log.last_until("mars", at) for at in (9, 10, 19, 20, 29, 30, 99)] == [
            0,
            100,
            100,
            300,
            300,
            400,
            400,
        ]


# Storage policies


@in_event_loop
async def test_limits_are_exact_after_each_commit(tmp_path: Path) -> None:
    room = size(draft(1)) * 4 - 1
    policies = {"mars": StoragePolicy(max_bytes=room), "diss": StoragePolicy(max_messages=7)}
    async with opened(SqliteLog(tmp_path, policies)) as log:
        await log.append_many([draft(n % 10, stream) for n in range(50) for stream in ("mars", "diss")])
        assert await log.state("mars") == StreamState(48, 50, 3, 3 * size(draft(1)), 47)
        assert await log.state("diss") == StreamState(44, 50, 7, 7 * size(draft(1, "diss")), 43)


@in_event_loop
async def test_limits_that_change_between_restarts_apply_at_once(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        for number in range(20):
            await log.append(draft(number % 5))
    async with opened(SqliteLog(tmp_path, {"Mars": StoragePolicy(max_messages=12)})) as log:
        assert await sequences(log, "mars") == list(range(9, 21))
    async with opened(SqliteLog(tmp_path, {"Mars": StoragePolicy(allow_duplicates=False)})) as log:
        assert await sequences(log, "mars") == list(range(16, 21))
        assert (await log.state("mars")).trimmed == 15
        assert (await log.append(draft(0))).sequence == 21
        assert await sequences(log, "mars") == list(range(17, 22))
    async with opened(SqliteLog(tmp_path, {"mars": StoragePolicy(compression=True)})) as log:
        assert (await log.append(draft(0))).sequence == 22
        assert await sequences(log, "mars") == list(range(17, 23))


@in_event_loop
async def test_retention_follows_the_clock_and_applies_at_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tidying = Tidying(monkeypatch)
    now = [100 * SECOND]
    policies = {"mars": StoragePolicy(retention_ns=10 * SECOND)}
    async with opened(SqliteLog(tmp_path, policies, clock=lambda: now[0])) as log:
        await log.append(draft(1))
        now[0] += 5 * SECOND
        await log.append(draft(2))
        now[0] += 5 * SECOND
        await tidying.twice()
        assert await sequences(log, "mars") == [1, 2], "exactly ten seconds old is kept"
        now[0] += 1

        async def trimmed() -> bool:
            return (await log.state("mars")).trimmed == 1

        await until(trimmed)
        assert await sequences(log, "mars") == [2]
    now[0] += 3600 * SECOND
    async with opened(SqliteLog(tmp_path, policies, clock=lambda: now[0])) as log:
        assert await log.state("mars") == StreamState(first=3, last=2, count=0, bytes=0, trimmed=2)
        assert (await log.append(draft(3))).sequence == 3


@in_event_loop
async def test_an_admin_does_not_move_the_trim_mark(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path, {"mars": StoragePolicy(max_messages=5)})) as log:
        await log.append_many([draft(n) for n in range(8)])
        await log.delete("mars", 4)
        await log.wipe("mars")
        assert (await log.state("mars")).trimmed == 3


@in_event_loop
async def test_names_of_streams_are_exact_and_may_be_anything(tmp_path: Path) -> None:
    names = ["Mars", "mars", "with space", 'quote"s', "semi;colon", "Zürich", "catalogue"]
    async with opened(SqliteLog(tmp_path)) as log:
        for name in names:
            assert (await log.append(draft(1, name))).sequence == 1
        assert list(await log.streams()) == sorted(names)
        assert await log.wipe("MARS") is None
    async with opened(SqliteLog(tmp_path)) as log:
        assert list(await log.streams()) == sorted(names)
