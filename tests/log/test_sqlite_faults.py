"""The sqlite log when things go wrong: a full disk, and a process killed at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aviso_server.errors import LogUnavailable
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Notification
from tests.log.scenario import Tidying, draft, everything, in_event_loop, opened, sequences, until

PUBLISH = """
import asyncio, sys
from pathlib import Path
from aviso_server.log.base import StoragePolicy
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Draft

async def publish(log, who, first):
    number = first
    while True:
        stream = ("mars", "diss")[number % 2]
        payload = b'"%d.%d"' % (who, number)
        stored = await log.append(Draft(stream, f"{stream}.{who}", b"{}", payload))
        print(stream, stored.sequence, payload.decode(), flush=True)
        number += 1

async def main():
    log = SqliteLog(Path(sys.argv[1]))
    await log.open()
    await asyncio.gather(*(publish(log, who, int(sys.argv[2])) for who in range(64)))

asyncio.run(main())
"""


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Make every write beyond this size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@in_event_loop
async def test_a_full_disk_fails_appends_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tidying = Tidying(monkeypatch)
    async with opened(SqliteLog(tmp_path)) as log:
        heard: list[Notification] = []
        log.follow("mars", heard.extend)
        for number in range(20):
            await log.append(draft(number, padding=300))
        held = await everything(log, "mars")
        state = await log.state("mars")
        with no_file_larger_than(1):
            for attempt in range(3):
                refused = await asyncio.gather(
                    *(log.append(draft(n, stream)) for n in range(10) for stream in ("mars", "new")),
                    log.append_many([draft(1)]),
                    log.delete("mars", 1),
                    log.wipe("mars"),
                    return_exceptions=True,
                )
                assert [type(one) for one in refused] == [LogUnavailable] * 23, attempt
                assert "writing failed" in str(refused[0])
                assert not log.connected
                assert await everything(log, "mars") == held
                assert await log.state("mars") == state
                assert list(await log.streams()) == ["mars"]
            # The readiness of a log with a full disk is looked at again and again; it stays refused.
            await tidying.twice()
            assert not log.connected
        assert (await log.append(draft(99))).sequence == 21
        assert log.connected
        assert [one.sequence for one in heard] == list(range(1, 22))
        assert (await log.append(draft(1, "new"))).sequence == 1
    async with opened(SqliteLog(tmp_path)) as log:
        assert await sequences(log, "mars") == list(range(1, 22))


@in_event_loop
async def test_a_log_is_ready_again_without_publishing_once_there_is_room(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append(draft(1))
        with no_file_larger_than(1):
            with pytest.raises(LogUnavailable):
                await log.append(draft(2))
            assert not log.connected

        async def connected() -> bool:
            return log.connected

        await until(connected)
        assert (await log.state("mars")).last == 1


@in_event_loop
async def test_a_checkpoint_that_finds_no_room_loses_nothing(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        await log.append_many([draft(n, padding=1_000) for n in range(3_000)])
        database = (tmp_path / "log.sqlite").stat().st_size
        with no_file_larger_than(max(database, 4096)):
            with pytest.raises(LogUnavailable):
                await log.append_many([draft(n, padding=1_000) for n in range(20_000)])
            assert len(await sequences(log, "mars", 1_000)) == 3_000
            await log.close()
    async with opened(SqliteLog(tmp_path)) as log:
        assert await sequences(log, "mars", 1_000) == list(range(1, 3_001))
        assert (await log.append(draft(1))).sequence == 3_001


@in_event_loop
async def test_opening_without_room_for_a_database_is_refused_and_works_later(tmp_path: Path) -> None:
    with no_file_larger_than(1_000), pytest.raises(LogUnavailable, match="opening failed"):
        await SqliteLog(tmp_path).open()
    async with opened(SqliteLog(tmp_path)) as log:
        assert (await log.append(draft(1))).sequence == 1


def test_a_killed_process_loses_nothing_it_acknowledged_and_reuses_no_number(tmp_path: Path) -> None:
    chance = random.Random(20)
    acknowledged: dict[tuple[str, int], str] = {}
    for attempt in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, str(tmp_path), str(attempt * 1_000_000)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        enough = chance.randrange(500, 4_000)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == enough:
                os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        newest = {stream: max((n for s, n in acknowledged if s == stream), default=0) for stream in ("mars", "diss")}
        for line in lines:
            if not line.endswith("\n"):
                continue
            stream, sequence, payload = line.split()
            place = (stream, int(sequence))
            assert place not in acknowledged, "a number was used twice"
            assert place[1] > newest[stream], "a number of an earlier round came again"
            acknowledged[place] = json.loads(payload)
    assert len(acknowledged) > 2_500

    async def check() -> None:
        async with opened(SqliteLog(tmp_path)) as log:
            for stream in ("mars", "diss"):
                stored = {one.sequence: json.loads(one.payload) for one in await everything(log, stream, limit=1_000)}
                assert sorted(stored) == list(range(1, len(stored) + 1)), "no gaps: each commit is whole"
                wanted = {sequence: payload for (name, sequence), payload in acknowledged.items() if name == stream}
                assert {sequence: stored.get(sequence) for sequence in wanted} == wanted
                assert (await log.append(draft(1, stream))).sequence == len(stored) + 1

    asyncio.run(check())
