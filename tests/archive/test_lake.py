"""The server's end of Arrow Flight, against the real other end: reading, waiting, leaving, and deleting for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from aviso_server.archive.journal import Journal
from aviso_server.archive.lake import Known, Lake
from aviso_server.archive.supervisor import Supervisor
from aviso_server.errors import InvalidRequest, LogUnavailable, PipelineError
from aviso_server.lake.removal_journal import Removal
from aviso_server.lake.remove import Removed
from aviso_server.model.explain import Tally
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.flight import REPLAY_SCHEMA, Cancelled, FlightServer, Selection
from aviso_server.store import Coverage, Version
from tests.delivery.scene import TIDE
from tests.harness.patience import PATIENCE
from tests.lake.scene import write

WANTED = TIDE.compile({}, "replay")


class Rows:
    """What the pipeline process has to say, from memory: as many rows as a test wants, as slowly as it wants."""

    def __init__(self, last: int = 1000, run: int = 100) -> None:
        self.last = last
        self.run = run
        self.state = "running"
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.open = 0
        self.cancelled = 0
        self.fail_at: int | None = None
        self.refuses: str | None = None
        self.takes_removals = True
        self.pause = 0.0
        self.gapless = 0  # as far as everything
        self.versions: list[int] = []  # that were asked for
        self.silent = 0.0
        self.hangs = False

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        if self.hangs:
            raise ConnectionError("no answer")
        if operation != "status":
            self.asked.append((operation, {name: request[name] for name in request if name not in ("token", "op")}))
        if self.refuses is not None and operation != "status":
            raise PipelineError(self.refuses)
        if operation == "status":
            facts = {"first": 1, "last": self.last, "gapless": self.gapless or self.last, "files": 3, "bytes": 99}
            streams = {"tides": {**facts, "last_error": None}}
            return {
                "streams": streams if self.last else {},
                "job": {"state": self.state, "last_error": None, "silent": self.silent},
            }
        if operation in ("delete", "wipe") and not self.takes_removals:
            raise PipelineError("the disk is full")
        if operation == "delete":
            early = [each for each in request["sequences"] if each > self.last]
            return {"deleted": [each for each in request["sequences"] if each not in early], "early": early}
        if operation == "wipe":
            return {"early": request["stream"] == "tides" and request["through"] > self.last}
        if operation == "version_at":
            return {"gone": "too long ago"} if request["time"] < 10 else {"version": 3, "last": 500}
        return {"sequence": 7} if operation in ("first_since", "last_until") else {}

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        if self.refuses is not None:
            raise PipelineError(self.refuses)
        assert selection.wanted == WANTED
        self.asked.append(("replay", {"start": selection.start, "end": selection.end}))
        self.versions += [] if selection.version is None else [selection.version]
        return self._rows(selection.start, min(selection.end, self.last), cancelled)

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally:
        if self.refuses is not None:
            raise PipelineError(self.refuses)
        assert selection.wanted == WANTED
        members = {"wiped_through": hidden.wiped_through, "deleted": list(hidden.deleted)}
        self.asked.append(("count", {"start": selection.start, "end": selection.end, "unit": unit, **members}))
        self.open += 1
        try:
            deadline = time.monotonic() + self.pause
            while time.monotonic() < deadline and not cancelled():
                time.sleep(0.01)
            self.cancelled += cancelled()
        finally:
            self.open -= 1
        tally = Tally(unit)
        tally.times[3], tally.cells[59, 10] = selection.end - selection.start + 1, 2
        return tally

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int:
        return 7

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int:
        return 7

    def close(self) -> None:
        pass

    def _rows(self, start: int, end: int, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        self.open += 1
        try:
            while start <= end:
                time.sleep(self.pause)
                if cancelled():
                    self.cancelled += 1
                    return
                if self.fail_at is not None and start >= self.fail_at:
                    self.fail_at = None
                    raise ConnectionError("Spark has gone")
                numbers = list(range(start, min(start + self.run, end + 1)))
                texts = [f'{{"level":"3","port":"p{number}"}}' for number in numbers]
                topics = [f"tides.p{number}.3" for number in numbers]
                payloads = [f'"{"x" * 200}"'] * len(numbers)
                yield pa.RecordBatch.from_pydict(
                    dict(zip(REPLAY_SCHEMA.names, (numbers, numbers, topics, texts, payloads), strict=True)),
                    schema=REPLAY_SCHEMA,
                )
                start = numbers[-1] + 1
        finally:
            self.open -= 1


class RowsServer(FlightServer):
    """The real server, with answers from memory."""

    def __init__(self, token: str, rows: Rows) -> None:
        super().__init__(token, ArchiveStatus(""), lambda: rows)
        self._rows_behind = rows

    def _answer(self, operation: str, request: Any) -> dict[str, Any]:
        return self._rows_behind.answer(operation, msgspec.to_builtins(request))


@asynccontextmanager
async def lake_on(
    rows: Rows, directory: Path, max_replays: int = 4, path: str | None = None, waits: bool = False
) -> AsyncIterator[Lake]:
    """A lake whose pipeline process answers from this one; it `waits` while a file `wait` is there."""
    ready, wait = directory / "flight.json", directory / "wait"
    if waits:
        wait.touch()
    supervisor = Supervisor(["-c", ""], ready, {})
    server = RowsServer(supervisor.token, rows)
    program = f"import os, sys, time\nwhile os.path.exists('{wait}'): time.sleep(0.05)\n"
    program += f"open('{ready}.new', 'w').write('{{\"port\": {server.port}}}')\n"
    program += f"os.replace('{ready}.new', '{ready}'); sys.stdin.read()"
    supervisor.command = ["-c", program]
    known = Known(path or str(directory / "archive"), directory / "archived.json")
    lake = Lake(supervisor, known, Journal(directory / "removals.jsonl"), max_replays, lambda event_type: ())
    await lake.open()
    lake.start()
    try:
        if not waits:
            await until(lambda: supervisor.state == "running")
        yield lake
    finally:
        await lake.close()
        server.shutdown()


async def until(condition: Any, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def sequences(lake: Lake, start: int = 1, end: int = 10**9) -> list[int]:
    return [each.sequence async for run in lake.read(WANTED, start, end) for each in run]


def test_reading(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=10_000, run=9000)
        async with lake_on(rows, tmp_path) as lake:
            runs = [run async for run in lake.read(WANTED, 5, 9_990)]
            assert [each.sequence for run in runs for each in run] == list(range(5, 9_991))
            assert max(len(run) for run in runs) <= 4096, "large batches are handed on in parts"
            first = runs[0][0]
            assert (first.time, first.topic) == (5, "tides.p5.3")
            assert first.identifier == b'{"level":"3","port":"p5"}'
            assert first.payload == b'"' + b"x" * 200 + b'"'
            assert await sequences(lake, 10_001) == [], "nothing is asked for what is not archived"
            assert rows.asked == [("replay", {"start": 5, "end": 9_990})]
            assert lake.watermark("tides") == 10_000
            assert lake.watermark("winds") == 0
            assert await lake.coverage("tides") == Coverage(1, 10_000)
            assert await lake.streams() == ["tides"]
            assert await lake.first_since("tides", 99) == 7
            assert await lake.last_until("tides", 99) == 7

    asyncio.run(run())


def test_a_process_or_a_java_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aviso_server.archive.lake._LONGEST_SILENCE", 2.0)

    async def run() -> None:
        rows = Rows()
        async with lake_on(rows, tmp_path) as lake:
            rows.silent = 3.0
            await until(lambda: lake.supervisor.restarts == 1)
            rows.silent = 0.0
            await until(lambda: lake.supervisor.state == "running")
            rows.hangs = True
            await until(lambda: lake.supervisor.restarts == 2)
            rows.hangs = False
            await until(lambda: lake.supervisor.state == "running")

    asyncio.run(run())
    ends = [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "archive.process.ended"]
    assert [each.split(";")[0].rpartition(" for ")[0] for each in ends] == [
        "the pipeline process ended with exit code -9: Java has not answered",
        "the pipeline process ended with exit code -9: it has not answered",
    ]


def test_counting(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows()
        rows.takes_removals = False  # so that the archive does not know of the deletes yet
        async with lake_on(rows, tmp_path) as lake:
            assert lake.reachable
            async with lake.deleting("tides", 7), lake.wiping("tides", 3):
                pass
            async with lake.deleting("winds", 8):
                pass
            tally = await lake.count(WANTED, 5, 900, 60)
            assert (tally.times, tally.cells) == ({3: 896}, {(59, 10): 2})
            members = {"start": 5, "end": 900, "unit": 60, "wiped_through": 3, "deleted": [7]}
            assert ("count", members) in rows.asked
            rows.refuses = "a file is gone"
            with pytest.raises(LogUnavailable, match="a file is gone"):
                await lake.count(WANTED, 5, 900, 60)

    asyncio.run(run())


def test_counts_take_their_turn_and_end_with_who_asked(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows()
        rows.pause = 30.0
        async with lake_on(rows, tmp_path, max_replays=1) as lake:
            first, second = (asyncio.create_task(lake.count(WANTED, 1, 2, 60)) for _ in range(2))
            await until(lambda: rows.open == 1 and lake.slots.waiting == 1)
            for each in (second, first):
                each.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await each
            await until(lambda: rows.open == 0)
            assert (rows.cancelled, lake.slots.taken, lake.slots.waiting) == (1, 0, 0)

    asyncio.run(run())


def test_news_is_asked_for_when_it_matters(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=100)
        async with lake_on(rows, tmp_path) as lake:
            rows.last = 200
            assert (await lake.coverage("tides", 150)).last == 200

    asyncio.run(run())


def test_a_process_that_has_not_looked_at_the_files_says_nothing_of_them(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=50)
        async with lake_on(rows, tmp_path, path="s3a://bucket/archive", waits=True) as lake:
            assert lake.supervisor.state == "starting"
            waiting = asyncio.create_task(lake.coverage("tides"))
            await asyncio.sleep(0.2)
            assert not waiting.done(), "nobody knows yet"
            (tmp_path / "wait").unlink()
            assert await asyncio.wait_for(waiting, 60) == Coverage(1, 50)
        # the next start knows what there was
        async with lake_on(rows, tmp_path, path="s3a://bucket/archive", waits=True) as lake:
            assert lake.known.streams == {"tides": Coverage(1, 50)}
            assert lake.watermark("tides") == 0, "nothing may be let go of before the process has said so"

    asyncio.run(run())


def test_a_broken_read_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.archive.lake._QUICK", 0.1)

    async def run() -> None:
        rows = Rows(last=1000, run=100)
        rows.fail_at = 500
        async with lake_on(rows, tmp_path) as lake:
            assert await sequences(lake) == list(range(1, 1001))
            starts = [members["start"] for name, members in rows.asked if name == "replay"]
            assert len(starts) == 2
            assert 1 < starts[1] <= 501

    asyncio.run(run())


def test_what_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.archive.lake._QUICK", 0.1)

    async def run() -> None:
        rows = Rows()
        async with lake_on(rows, tmp_path, path="s3a://bucket/archive") as lake:
            rows.refuses = "a file is missing"
            with pytest.raises(LogUnavailable, match="the archive cannot be read now: a file is missing"):
                await sequences(lake)
            with pytest.raises(LogUnavailable, match="a file is missing"):
                await lake.first_since("tides", 1)
            shown = (await lake.describe())["streams"]["tides"]["last_error"]
            assert shown == "a file is missing", "until somebody has read all of it"
            rows.refuses = None
            await sequences(lake)
            assert (await lake.describe())["streams"]["tides"]["last_error"] is None
            lake.supervisor.state, lake.supervisor.reason = "unavailable", "Spark needs Java 17 or newer"
            with pytest.raises(LogUnavailable, match="Java 17"):
                await sequences(lake)
            assert (lake.slots.taken, lake.slots.waiting) == (0, 0)

    asyncio.run(run())


def test_whoever_leaves_ends_the_work(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=10**6, run=1000)
        async with lake_on(rows, tmp_path) as lake:
            reading = lake.read(WANTED, 1, 10**6)
            await anext(reading)
            assert rows.open == 1
            await reading.aclose()
            await until(lambda: rows.open == 0)
            rows.pause = 0.2
            reading = lake.read(WANTED, 1, 10**6)
            waiting = asyncio.create_task(anext(reading))
            await until(lambda: rows.open == 1)
            waiting.cancel()
            await until(lambda: rows.open == 0)
            assert (lake.slots.taken, lake.slots.waiting) == (0, 0)

    asyncio.run(run())


def test_a_reader_who_takes_nothing_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fill the memory either: what it does not take stays with the process."""
    monkeypatch.setattr("aviso_server.archive.flight_client._IDLE", 0.2)

    async def run() -> None:
        rows = Rows(last=100_000, run=1000)
        async with lake_on(rows, tmp_path, max_replays=1) as lake:
            lake.slots._idle = 0.2
            lazy = lake.read(WANTED, 1, 100_000)
            found = list(await anext(lazy))
            await asyncio.sleep(0.3)
            assert rows.open == 1, "nobody else wants to read, so it keeps its place"
            assert await asyncio.wait_for(sequences(lake, 1, 500), 60) == list(range(1, 501))
            async for run in lazy:
                found += run
            assert [each.sequence for each in found] == list(range(1, 100_001)), "it goes on where it was"

    asyncio.run(run())


def test_deletes(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            async with lake.deleting("tides", 5) as deletion:
                assert lake.journal.pending == [Removal("delete", "tides", 5)], "noted before anything happens"
                assert await deletion.archived()
            async with lake.deleting("tides", 6):
                pass  # the log had it
            async with lake.wiping("winds", 77):
                pass
            await until(lambda: not lake.journal.pending)
            told = [(name, *members.values()) for name, members in rows.asked]
            assert sorted(told) == [("delete", "tides", [5]), ("delete", "tides", [6]), ("wipe", "winds", 77)]

    asyncio.run(run())


def test_what_is_deleted_before_it_is_archived_is_asked_for_again_when_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            async with lake.deleting("tides", 1001) as deletion:
                assert not await deletion.archived()
            async with lake.wiping("tides", 1005):
                pass
            await until(lambda: len(rows.asked) >= 2)
            await lake.coverage("tides", 1001)
            assert len(lake.journal.pending) == 2, "they are kept, over restarts too"
            assert len(rows.asked) <= 3, "once is enough until there is news"
            rows.last = 1010
            await until(lambda: not lake.journal.pending)
            assert rows.asked[-1][0] in ("delete", "wipe")

    asyncio.run(run())


def test_a_delete_reaches_the_archive_although_something_before_it_is_missing(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=10)
        rows.gapless = 5
        async with lake_on(rows, tmp_path) as lake:
            async with lake.deleting("tides", 12):
                pass
            await until(lambda: len(rows.asked) == 1)
            assert list(lake.journal.pending) == [Removal("delete", "tides", 12)]
            rows.last = 20
            await until(lambda: not lake.journal.pending)
            assert lake.watermark("tides") == 5

    asyncio.run(run())


def test_the_log_may_let_go_of_the_gapless_part_only(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        rows.gapless = 400
        async with lake_on(rows, tmp_path) as lake:
            await until(lambda: lake.watermark("tides") > 0)
            assert lake.watermark("tides") == 400
            assert await lake.coverage("tides") == Coverage(1, 1000), "what is missing is asked for, and refused"
        rows.last, rows.gapless = 600, 0
        async with lake_on(rows, tmp_path) as again:  # commits were lost while nobody looked
            await until(lambda: again.watermark("tides") == 600)
            assert await again.coverage("tides", 1000) == Coverage(1, 1000)

    asyncio.run(run())


def test_a_delete_that_the_log_refused_is_taken_back(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            with pytest.raises(LogUnavailable):
                async with lake.deleting("tides", 5):
                    raise LogUnavailable("the disk is full")
            assert lake.journal.pending == []
            await asyncio.sleep(0.1)
            assert rows.asked == []
            assert 5 in await sequences(lake)

    asyncio.run(run())


def test_deletes_that_the_archive_does_not_take(tmp_path: Path) -> None:
    """They are answered, hidden, kept over a restart of the server, and handed over when it takes them."""

    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            rows.takes_removals = False
            async with lake.deleting("tides", 5) as deletion:
                assert await deletion.archived(), "it may be there"
            async with lake.deleting("tides", 5) as deletion:
                assert not await deletion.archived(), "it was deleted before"
            async with lake.deleting("winds", 5) as deletion:
                assert not await deletion.archived(), "nothing of it is archived"
            async with lake.wiping("tides", 3):
                pass
            assert await sequences(lake, 1, 8) == [4, 6, 7, 8]
            assert len(lake.journal.pending) == 3
        rows.takes_removals = True
        rows.asked.clear()
        async with lake_on(rows, tmp_path) as again:
            await until(lambda: not again.journal.pending)
            assert rows.asked == [
                ("delete", {"stream": "tides", "sequences": [5]}),
                ("delete", {"stream": "winds", "sequences": [5]}),
                ("wipe", {"stream": "tides", "through": 3}),
            ]

    asyncio.run(run())


def test_what_is_deleted_while_somebody_reads_is_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=5000, run=10)
        async with lake_on(rows, tmp_path) as lake:
            reading = lake.read(WANTED, 1, 5000)
            found = list(await anext(reading))
            async with lake.deleting("tides", 4000) as deletion:
                assert await deletion.archived()
            assert lake.journal.pending == [], "confirmed; but this reader's rows were chosen before"
            async for run in reading:
                found += run
            assert [each.sequence for each in found] == [each for each in range(1, 5001) if each != 4000]

    asyncio.run(run())


def test_what_was_known_at_a_time(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            with pytest.raises(InvalidRequest, match="as_of: the archive cannot say what was known then: too long ago"):
                await lake.version_at("tides", 5)
            version = await lake.version_at("tides", 50)
            assert version == Version(3, 500)
            async with lake.deleting("tides", 7):
                found = [each.sequence async for run in lake.read(WANTED, 1, 10**9, version) for each in run]
            assert found == list(range(1, 501)), "up to its end, with what is deleted since"
            assert rows.versions == [3]
            assert (await lake.count(WANTED, 1, 500, 60, version)).total == 500
            members = {"start": 1, "end": 500, "unit": 60, "wiped_through": 0, "deleted": []}
            assert ("count", members) in rows.asked
            assert await lake.first_since("tides", 99, version) == 7

    asyncio.run(run())


def test_how_it_is_doing(tmp_path: Path) -> None:
    async def run() -> None:
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path) as lake:
            assert await lake.describe() == {
                "state": "running",
                "job": "running",
                "reason": None,
                "streams": {"tides": {"first": 1, "last": 1000, "files": 3, "bytes": 99, "last_error": None}},
            }

    asyncio.run(run())


def test_tables_on_this_machine_are_known_without_spark(tmp_path: Path) -> None:
    async def run() -> None:
        write(tmp_path / "archive", 1, 90)
        write(tmp_path / "archive", 91, 120)
        known = Known(str(tmp_path / "archive"), tmp_path / "archived.json")
        assert known.of("flood") is None
        await known.look()
        assert known.of("flood") == Coverage(1, 120)
        assert known.of("winds") == Coverage(1, 0)

    asyncio.run(run())


def test_an_archive_of_the_previous_format_is_known_too(tmp_path: Path) -> None:
    """So that no sequence is given out twice."""

    async def run() -> None:
        folder = tmp_path / "archive" / "the%20tides"
        folder.mkdir(parents=True)
        for name in (f"{1:020d}-{90:020d}.parquet", f"{91:020d}-{120:020d}.parquet", "_draft.parquet"):
            (folder / name).write_bytes(b"")
        known = Known(str(tmp_path / "archive"), tmp_path / "archived.json")
        assert known.of("the tides") is None
        await known.look()
        assert known.of("the tides") == Coverage(1, 120)
        assert known.of("winds") == Coverage(1, 0)

    asyncio.run(run())


class NoLease:
    """A lease that another server has."""

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def test_what_another_server_has_archived_meanwhile_is_asked_for_before_the_answer(tmp_path: Path) -> None:
    """This server knows of 100, and while its process starts the log says that 990 are gone from it."""

    async def run() -> None:
        rows = Rows(last=100)
        async with lake_on(rows, tmp_path, path="s3://somewhere/archive") as lake:
            assert await lake.coverage("tides", 100) == Coverage(1, 100)
        rows = Rows(last=1000)
        async with lake_on(rows, tmp_path, path="s3://somewhere/archive", waits=True) as lake:
            lake.lease = NoLease()
            asking = asyncio.create_task(lake.coverage("tides", 990))
            await asyncio.sleep(0.3)
            assert not asking.done(), "nobody can say yet"
            (tmp_path / "wait").unlink()
            async with asyncio.timeout(PATIENCE):
                assert await asking == Coverage(1, 1000)

    asyncio.run(run())
