"""History as one stream: what the log let go of from the archive, the rest from the log, then live; each once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from aviso_server.delivery.clients import ClientWriter
from aviso_server.delivery.formats import ArrowStream, Format, JsonLines
from aviso_server.delivery.history import chunks
from aviso_server.delivery.hub import Hub
from aviso_server.errors import InvalidRequest
from aviso_server.log.base import Batch, StoragePolicy
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.log.sqlite.writer import TRIM_SECONDS
from aviso_server.model.batch import wire_columns
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.times import Span
from aviso_server.store import Bounds, Coverage, Version
from tests.archive.memory_archive import MemoryArchive, archived_hub, archived_log, begin_replay, replayed, trimmed_to
from tests.delivery.scene import TIDE, Reader, join, publish, settled

pytestmark = pytest.mark.usefixtures("quick_retention")

T = TypeVar("T")

FROM_THE_START = Span(from_sequence=0)


@pytest.fixture
def quick_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRIM_SECONDS == 1.0
    monkeypatch.setattr("aviso_server.log.sqlite.writer.TRIM_SECONDS", 0.02)


class Hours:
    """A clock that goes on by an hour with every look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 3600 * 10**9
        return self.now


def test_archive_then_log(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=30), archive) as hub:
            await publish(hub.store.log, 100)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 70)
            await publish(hub.store.log, 5)
            await trimmed_to(hub.store.log, 75)  # from now on the boundary stays where it is
            reader = await replayed(hub, FROM_THE_START)
            assert reader.sequences == list(range(1, 106))
            assert reader.kinds[-2:] == ["replay_completed", "connection-closing"]
            assert archive.reads == [(1, 75)], "one boundary"
            for start in (1, 74, 75, 76, 77, 105):
                assert (await replayed(hub, Span(from_sequence=start))).sequences == list(range(start, 106))
            assert (await replayed(hub, Span(from_sequence=10, to_sequence=12))).sequences == [10, 11, 12]
            assert (await replayed(hub, Span(from_sequence=60, to_sequence=80))).sequences == list(range(60, 81))
            assert (await replayed(hub, FROM_THE_START, cap=75)).sequences == list(range(1, 76))

    asyncio.run(run())


def test_the_archive_is_asked_only_for_what_the_log_let_go_of(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path), archive) as hub:
            await publish(hub.store.log, 50)
            await archive.take(hub.store.log)
            archive.down = True
            assert (await replayed(hub, FROM_THE_START)).sequences == list(range(1, 51))
            assert (await replayed(hub, Span(from_time=0))).sequences == list(range(1, 51))
            assert archive.reads == []

    asyncio.run(run())


def test_filters_hold_in_the_archive_too(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=10), archive) as hub:
            for number in range(60):
                await publish(hub.store.log, port="oslo" if number % 3 else "bergen", level=number)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 50)
            reader = await replayed(hub, FROM_THE_START, port="bergen", level={"gte": 30})
            assert reader.sequences == [number + 1 for number in range(60) if number % 3 == 0 and number >= 30]

    asyncio.run(run())


def test_the_filter_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has tested what it brings: only what the log brings is tested here."""
    tested: list[int] = []
    choose = Filter.choose

    def noted(self: Filter, notifications: Sequence[Notification]) -> Sequence[Notification]:
        tested.extend(each.sequence for each in notifications)
        return choose(self, notifications)

    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=30), archive) as hub:
            await publish(hub.store.log, 100)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 70)
            monkeypatch.setattr(Filter, "choose", noted)
            found = [each async for chunk in _read(hub) for each in chunk]
            assert [each.sequence for each in found] == list(range(1, 101))
            assert tested == list(range(71, 101))

    async def _read(hub: Hub) -> AsyncIterator[list[Notification]]:
        async for chosen, _ in hub.store.read(TIDE.compile({}, "replay"), 1, 100, list):
            yield chosen

    asyncio.run(run())


def test_what_was_known_comes_from_the_archive_alone(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive(run=7)
        async with archived_hub(archived_log(archive, tmp_path, Hours(), max_messages=90), archive) as hub:
            for _ in range(60):
                await publish(hub.store.log, 1)
            await archive.take(hub.store.log, 50)
            past = await hub.store.as_of("tides", 5)
            assert past.version == Version(0, 50)
            assert (await past.state("tides")).last == 50
            start, end = (archive.held["tides"][place].time for place in (9, 19))
            assert await past.bounds("tides", Span(from_time=start, to_time=end)) == Bounds(10, 20, 1, 50, 0)
            wanted = TIDE.compile({}, "replay")
            found: list[Notification] = []
            async for each, following in past.read(wanted, 11, 50, list):
                found += each
                assert following == (found[-1].sequence + 1 if each else 51)
            assert [each.sequence for each in found] == list(range(11, 51))
            reader = Reader()
            replay = hub.replay(wanted, ClientWriter(reader.send, reader.hang_up), "the-request", store=past)
            replay.begin(FROM_THE_START, 50, None)
            await settled(lambda: reader.ended)
            hub.release(replay)
            assert reader.sequences == list(range(1, 51)), "the log has ten more"
            with pytest.raises(InvalidRequest, match="has no archive"):
                await hub.store.without_archive().as_of("tides", 5)

    asyncio.run(run())


def test_by_date(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        clock = Hours()
        async with archived_hub(archived_log(archive, tmp_path, clock, max_messages=10), archive) as hub:
            times = [(await publish(hub.store.log))[0].time for _ in range(40)]
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 30)
            for place in (0, 10, 29, 30, 31, 39):
                at = times[place]
                assert (await replayed(hub, Span(from_time=at))).sequences == list(range(place + 1, 41))
                assert (await replayed(hub, Span(from_time=at + 1))).sequences == list(range(place + 2, 41))
                upto = Span(from_sequence=0, to_time=at)
                assert (await replayed(hub, upto)).sequences == list(range(1, place + 2))
                before = Span(from_sequence=0, to_time=at - 1)
                assert (await replayed(hub, before)).sequences == list(range(1, place + 1))

    asyncio.run(run())


def test_a_date_between_deleted_notifications(tmp_path: Path) -> None:
    """The oldest of the log are deleted, so the log's first is further on than what retention removed."""

    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, Hours(), max_messages=10), archive) as hub:
            times = [(await publish(hub.store.log))[0].time for _ in range(20)]
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 10)
            for sequence in (11, 12):
                assert await hub.store.delete("tides", sequence)
            assert (await replayed(hub, Span(from_sequence=0, to_time=times[4]))).sequences == [1, 2, 3, 4, 5]
            assert (await replayed(hub, Span(from_time=times[8]))).sequences == [9, 10, *range(13, 21)]
            assert (await replayed(hub, Span(from_time=times[10]))).sequences == list(range(13, 21))

    asyncio.run(run())


def test_watch_from_the_archive_into_the_present(tmp_path: Path) -> None:
    """Publishing, archiving and retention go on meanwhile."""

    async def run() -> None:
        archive = MemoryArchive(run=7)
        async with archived_hub(archived_log(archive, tmp_path, max_messages=20), archive) as hub:
            await publish(hub.store.log, 200)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 180)
            _, reader = await join(hub, FROM_THE_START)
            for _ in range(60):
                await publish(hub.store.log, 5)
                await archive.take(hub.store.log)
                await asyncio.sleep(0.002)
            await settled(lambda: len(reader.sequences) == 500)
            assert reader.sequences == list(range(1, 501))
            assert reader.kinds.count("replay_completed") == 1

    asyncio.run(run())


@pytest.mark.parametrize("watching", [True, False])
def test_a_slow_reader_whom_retention_overtakes_goes_on_in_the_archive(tmp_path: Path, watching: bool) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=50), archive, buffer_bytes=10_000) as hub:
            reader = Reader()
            if watching:
                await join(hub, reader=reader)
                reader.stop()
            for _ in range(12):
                await publish(hub.store.log, 500, size=100)
                await asyncio.sleep(0.01)
            many = 6000  # more than the feed remembers
            if not watching:
                reader.stop()
                await begin_replay(hub, FROM_THE_START, reader)
            await asyncio.sleep(0.05)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, many - 50)
            await publish(hub.store.log, 10)
            reader.resume()
            wanted = many + 10 if watching else many
            await settled(lambda: reader.received.count(b'"specversion"') == wanted)
            assert reader.sequences == list(range(1, wanted + 1))
            assert archive.reads, "the log had let go of it"

    asyncio.run(run())


def test_an_archive_that_is_away_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=10), archive) as hub:
            await publish(hub.store.log, 50)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 40)
            archive.down = True
            reader = await replayed(hub, FROM_THE_START)
            assert reader.kinds == ["error", "connection-closing"]
            assert reader.reason == "end_of_stream"
            assert "on strike" in reader.frames[0].data["message"]
            _, watcher = await join(hub, Span(from_sequence=5))
            await settled(lambda: watcher.ended)
            assert watcher.kinds == ["error", "connection-closing"]
            assert (await replayed(hub, Span(from_sequence=41))).sequences == list(range(41, 51))
            _, live = await join(hub)
            await publish(hub.store.log)
            await settled(lambda: live.sequences == [51])
            assert archive.open_reads == 0

    asyncio.run(run())


def test_it_breaks_off_in_the_middle(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive(run=10)
        async with archived_hub(archived_log(archive, tmp_path, max_messages=10), archive) as hub:
            await publish(hub.store.log, 1000, size=1000)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 990)
            reader = Reader()
            reader.stop()
            await begin_replay(hub, FROM_THE_START, reader)
            await asyncio.sleep(0.05)
            archive.down = True
            reader.resume()
            await settled(lambda: reader.ended)
            assert reader.kinds[-2:] == ["error", "connection-closing"]
            assert 0 < len(reader.sequences) < 990
            assert reader.sequences == list(range(1, len(reader.sequences) + 1))

    asyncio.run(run())


def test_a_reader_who_leaves_ends_the_work(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive(run=1)
        async with archived_hub(archived_log(archive, tmp_path, max_messages=1), archive) as hub:
            await publish(hub.store.log, 300)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 299)
            reader = Reader()
            reader.stop()
            replay = await begin_replay(hub, FROM_THE_START, reader)
            watcher, _ = await join(hub, FROM_THE_START, reader=reader)
            await settled(lambda: archive.open_reads == 2)
            hub.release(replay)
            hub.release(watcher)
            await settled(lambda: archive.open_reads == 0)

    asyncio.run(run())


def test_only_the_newest_of_each_topic_in_the_log_but_all_in_history(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, allow_duplicates=False), archive) as hub:
            for number in range(60):
                await publish(hub.store.log, level=number % 6)
            assert (await hub.store.log.state("tides")).count == 60
            await archive.take(hub.store.log, 50)
            await trimmed_to(hub.store.log, 50)
            # 51 to 60 are not archived; of the others those go that are not the newest of their topic
            held = [each.sequence for each in (await hub.store.log.read("tides", 1, 60, 100)).notifications]
            assert held == list(range(51, 61))
            assert (await replayed(hub, FROM_THE_START)).sequences == list(range(1, 61))
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 54)
            held = [each.sequence for each in (await hub.store.log.read("tides", 1, 60, 100)).notifications]
            assert held == list(range(55, 61))
            assert (await replayed(hub, FROM_THE_START, level=3)).sequences == list(range(4, 61, 6))

    asyncio.run(run())


def test_what_was_gone_before_there_was_an_archive(tmp_path: Path) -> None:
    """The archive begins later than the log: nobody has what lies before, and readers get what there is."""

    async def run() -> None:
        policies = {"tides": StoragePolicy(max_messages=20)}
        log = SqliteLog(tmp_path, policies)
        await log.open()
        await publish(log, 100)
        await log.close()
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=20), archive) as hub:
            assert (await replayed(hub, FROM_THE_START)).sequences == list(range(81, 101))
            await publish(hub.store.log, 30)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 110)
            assert (await replayed(hub, FROM_THE_START)).sequences == list(range(81, 131))

    asyncio.run(run())


async def in_form(hub: Hub, form: Format, span: Span) -> bytes:
    bounds = await hub.store.bounds("tides", span)
    reader = Reader()
    writer = ClientWriter(reader.send, reader.hang_up)
    replay = hub.replay(TIDE.compile({}, "replay"), writer, "the-request", format_=form)
    if isinstance(form, ArrowStream):
        await writer.deliver(form.opening(bounds))
    replay.begin(Span(from_sequence=bounds.start), bounds.end, None)
    await settled(lambda: reader.ended or replay.aborted.is_set())
    hub.release(replay)
    return reader.received


def test_forms(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=20), archive) as hub:
            await publish(hub.store.log, 90)
            await archive.take(hub.store.log)
            await trimmed_to(hub.store.log, 70)
            lines = await in_form(hub, JsonLines("tides", hub.renderer("tide"), "the-request"), Span(from_sequence=5))
            assert lines.count(b'"specversion"') == 86
            assert b'"type":"replay_completed"' in lines.splitlines()[-1]
            arrow = await in_form(hub, ArrowStream("tide", wire_columns(TIDE), "the-request"), Span(from_sequence=5))
            table = pa.ipc.open_stream(arrow).read_all()
            assert table.column("sequence").to_pylist() == list(range(5, 91))
            words = table.schema.metadata
            assert words[b"aviso.first_sequence"] == b"1"
            assert words[b"aviso.trimmed_sequence"] == b"0", "nothing is lost to readers"
            assert words[b"aviso.last_sequence"] == b"90"
            # the archive job wants to know of the log alone
            bounds = await hub.store.without_archive().bounds("tides", Span(from_sequence=0))
            assert (bounds.first, bounds.trimmed) == (71, 70)

    asyncio.run(run())


def test_delete_and_wipe_reach_both(tmp_path: Path) -> None:
    async def run() -> None:
        archive = MemoryArchive()
        async with archived_hub(archived_log(archive, tmp_path, max_messages=10), archive) as hub:
            await publish(hub.store.log, 30)
            await archive.take(hub.store.log, 25)
            await trimmed_to(hub.store.log, 20)
            delete = hub.store.delete
            # only in the archive, in both, only in the log; then again, and never given out
            assert [await delete("tides", each) for each in (5, 23, 28, 5, 23, 28, 31)] == [True] * 3 + [False] * 4
            kept = [each for each in range(1, 31) if each not in (5, 23, 28)]
            assert (await replayed(hub, FROM_THE_START)).sequences == kept
            await archive.take(hub.store.log)
            assert (await replayed(hub, FROM_THE_START)).sequences == kept
            assert await hub.store.wipe("tides") == 8
            assert (await replayed(hub, FROM_THE_START)).sequences == []
            await publish(hub.store.log, 2)
            assert (await replayed(hub, FROM_THE_START)).sequences == [31, 32]
            assert await hub.store.wipe("never used") is None
            assert await hub.store.streams() == ["tides"]

    asyncio.run(run())


def test_a_gap_that_nobody_holds_closes_a_watcher() -> None:
    """A log that does not wait for the archive, as a broker's: what was in neither is lost, and is not passed over."""

    async def run() -> None:
        archive = MemoryArchive()
        log = MemoryLog(max_history_per_topic=50)
        async with archived_hub(log, archive, buffer_bytes=5_000) as hub:
            await publish(log, 10)
            await archive.take(log)
            _, reader = await join(hub)
            reader.stop()
            for _ in range(20):
                await publish(log, 500, size=100)  # in all more than the feed remembers
                await asyncio.sleep(0.01)
            reader.resume()
            await settled(lambda: reader.ended)
            assert reader.reason == "end_of_stream"
            assert (await archive.coverage("tides")) == Coverage(1, 10)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_each_reader_gets_each_once(tmp_path: Path, seed: int) -> None:
    """Publishing, archiving and retention at random, with readers at random places."""

    async def run() -> None:
        chance = random.Random(seed)
        archive = MemoryArchive(run=chance.choice([1, 9, 200]))
        log = archived_log(archive, tmp_path, max_messages=chance.choice([1, 20, 200]))
        async with archived_hub(log, archive, buffer_bytes=4_000) as hub:
            watchers: list[tuple[int, Reader]] = []
            replays: list[tuple[int, int, Reader]] = []
            last = 0
            for _ in range(120):
                match chance.randrange(6):
                    case 0 | 1:
                        last += len(await publish(log, chance.randrange(1, 40), size=50))
                    case 2:
                        await archive.take(log, chance.randrange(last + 1))
                    case 3 if len(watchers) < 12:
                        start = chance.randrange(1, last + 2)
                        watchers.append((start, (await join(hub, Span(from_sequence=start)))[1]))
                    case 4 if len(replays) < 12:
                        start, reader = chance.randrange(1, last + 2), Reader()
                        await begin_replay(hub, Span(from_sequence=start), reader)
                        replays.append((start, last, reader))
                    case 5 if watchers:
                        for _, reader in [*watchers, *[(0, reader) for *_, reader in replays]]:
                            reader.stop() if chance.random() < 0.3 else reader.resume()
                await asyncio.sleep(chance.choice([0, 0, 0.01, 0.03]))
            for reader in [reader for _, reader in watchers] + [reader for *_, reader in replays]:
                reader.resume()
            for start, end, reader in replays:
                await settled(lambda reader=reader: reader.ended)
                assert reader.sequences == list(range(start, end + 1))
            for start, reader in watchers:
                await settled(lambda start=start, reader=reader: reader.sequences[-1:] == [last] or start > last)
                assert reader.sequences == list(range(start, last + 1))

    asyncio.run(run())


class OvertakenLog(SqliteLog):
    """A log whose retention is at work just before the second batch is read."""

    archive: MemoryArchive
    reads = 0

    async def read_in_thread(
        self, stream: str, start: int, end: int, limit: int, topics: bool, work: Callable[[Batch, int], T]
    ) -> T:
        self.reads += 1
        if self.reads == 2:
            await publish(self, 1)  # an unarchived one holds nothing back
            await self.archive.take(self)
            await trimmed_to(self, 900)
        return await super().read_in_thread(stream, start, end, limit, topics, work)


def test_what_retention_may_have_cut_is_rendered_once(tmp_path: Path) -> None:
    """Parquet files and counts remember what they have rendered."""

    async def run() -> None:
        archive = MemoryArchive()
        log = OvertakenLog(tmp_path, {"tides": StoragePolicy(max_messages=100)}, archived=archive.watermark)
        log.archive = archive
        async with archived_hub(log, archive) as hub:
            await publish(log, 1000)
            rendered: list[int] = []

            def render(notifications: Sequence[Notification]) -> bytes:
                rendered.extend(each.sequence for each in notifications)
                return b""

            found = chunks(hub.store, TIDE.compile({}, "replay"), render, 1, 1000, prefetch=0)
            assert [chunk.count async for chunk in found]
            assert rendered == list(range(1, 1001))
            assert archive.reads, "the log had let go of it"

    asyncio.run(run())
