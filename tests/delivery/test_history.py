"""Chunks of history: all of them, once, in order, and no more than somebody takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.counters import Operations
from aviso_server.delivery.history import PREFETCH, Chunk, Chunks, chunks
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch
from aviso_server.log.memory import MemoryLog
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.cloudevent import REPLAY, Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from aviso_server.store import Store
from tests.delivery.scene import settled
from tests.log.scenario import in_event_loop

EVERYTHING = Filter("tide", "tide", "tide.*")
OSLO = Filter("tide", "tide", "tide.*", (("port", "oslo"),))
RENDERER = Renderer("tide", "http://localhost")


def draft(number: int, size: int = 10) -> Draft:
    port = "oslo" if number % 3 else "kiel"
    return Draft("tide", f"tide.{port}", b'{"port":"%b"}' % port.encode(), b'"%b"' % (b"x" * size))


def frames(notifications: Sequence[Notification]) -> bytes:
    return bytes(RENDERER.frames(REPLAY, notifications))


T = TypeVar("T")


async def all_of(found: Chunks) -> list[Chunk]:
    with closing(found):
        return [chunk async for chunk in found]


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["sqlite", "memory"]),
    count=st.integers(0, 9_000),
    removed=st.lists(st.integers(1, 9_000), max_size=5),
    start=st.integers(1, 9_000),
    end=st.integers(1, 10_000),
    room=st.none() | st.integers(0, 5_000),
    topics=st.booleans(),
    batch=st.none() | st.integers(500, 5_000),
    prefetch=st.integers(0, 3),
    wanted=st.sampled_from([EVERYTHING, OSLO]),
)
def test_chunks_are_what_a_plain_read_finds(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    count: int,
    removed: list[int],
    start: int,
    end: int,
    room: int | None,
    topics: bool,
    batch: int | None,
    prefetch: int,
    wanted: Filter,
) -> None:
    async def scene() -> None:
        log = SqliteLog(tmp_path_factory.mktemp("log")) if kind == "sqlite" else MemoryLog(1_000_000)
        await log.open()
        stored = await log.append_many([draft(number) for number in range(count)])
        for sequence in removed:
            await log.delete("tide", sequence)
        last = min(end, count)
        options = {"most": room, "topics": topics, "batch": batch, "prefetch": prefetch}
        found = await all_of(chunks(Store(log), wanted, frames, start, last, **options))  # type: ignore[arg-type]  # of several types
        matching = [
            each
            for each in stored
            if start <= each.sequence <= last and each.sequence not in removed and wanted.matches(each)
        ]
        if room is not None and len(matching) > room:
            assert [chunk.more for chunk in found] == [False] * (len(found) - 1) + [True]
            matching = matching[:room]
        else:
            assert not any(chunk.more for chunk in found)
            assert not found or found[-1].next > last
        assert sum(chunk.count for chunk in found) == len(matching)
        assert b"".join(chunk.data for chunk in found) == b"".join(RENDERER.frame(REPLAY, each) for each in matching)
        await log.close()

    asyncio.run(scene())


@in_event_loop
async def test_what_is_deleted_meanwhile_confuses_nobody(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    await log.append_many([draft(number) for number in range(20_000)])
    found = chunks(Store(log), EVERYTHING, frames, 1, 20_000)
    first = await anext(found)
    for sequence in (19_000, 19_001, 20_000):
        assert await log.delete("tide", sequence)
    read = [first, *await all_of(found)]
    assert sum(chunk.count for chunk in read) == 20_000 - 3
    assert read[-1].next == 20_001
    await log.close()


@in_event_loop
async def test_large_notifications_make_small_chunks(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    for _ in range(8):
        await log.append_many([draft(number, 100_000) for number in range(25)])
    read = await all_of(chunks(Store(log), EVERYTHING, frames, 1, 200))
    assert sum(chunk.count for chunk in read) == 200
    assert max(chunk.count for chunk in read) <= 10
    await log.close()


@in_event_loop
async def test_the_first_chunk_is_small_and_the_others_grow(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    await log.append_many([draft(number) for number in range(10_000)])
    sizes = [chunk.count for chunk in await all_of(chunks(Store(log), EVERYTHING, frames, 1, 10_000))]
    assert sizes[:3] == [100, 400, 1600]
    assert set(sizes[3:-1]) == {2048}
    await log.close()


class CountingLog(SqliteLog):
    """Counts the reads in threads, and fails from a sequence on."""

    def __init__(self, directory: Path, fails_at: int = 2**62) -> None:
        super().__init__(directory)
        self.fails_at = fails_at
        self.reads = 0

    async def read_in_thread(
        self, stream: str, start: int, end: int, limit: int, topics: bool, work: Callable[[Batch, int], T]
    ) -> T:
        self.reads += 1
        if start >= self.fails_at:
            raise LogUnavailable("the disk is gone")
        return await super().read_in_thread(stream, start, end, limit, topics, work)


@pytest.mark.parametrize("prefetch", [0, PREFETCH])
def test_no_more_is_made_than_somebody_takes(tmp_path: Path, prefetch: int) -> None:
    async def scene() -> None:
        log = CountingLog(tmp_path / "log")
        await log.open()
        await log.append_many([draft(number) for number in range(60_000)])
        found = chunks(Store(log), EVERYTHING, frames, 1, 60_000, prefetch=prefetch)
        for taken in range(1, 4):
            assert (await anext(found)).count
            await settled(lambda taken=taken: log.reads == taken + prefetch)
            await asyncio.sleep(0.05)
            assert log.reads == taken + prefetch
        found.close()
        await asyncio.sleep(0.05)
        assert log.reads == 3 + prefetch
        await log.close()

    asyncio.run(scene())


@in_event_loop
async def test_all_that_could_be_read_comes_before_the_failure(tmp_path: Path) -> None:
    log = CountingLog(tmp_path / "log", fails_at=6_000)
    await log.open()
    await log.append_many([draft(number) for number in range(20_000)])
    operations = Operations()
    found = chunks(Store(log, operations=operations), EVERYTHING, frames, 1, 20_000)
    reached = 1
    with pytest.raises(LogUnavailable, match="the disk is gone"):  # noqa: PT012  # nobody knows after how many
        async for chunk in found:
            assert chunk.next - chunk.count == reached
            reached = chunk.next
    assert 6_000 <= reached < 6_000 + 2_048
    assert operations.durations["get_batch", "ok"].total >= 3
    assert operations.durations["get_batch", "error"].total == 1
    await log.close()


@in_event_loop
async def test_a_reader_that_is_woken_gets_an_empty_chunk_and_misses_nothing() -> None:
    log = MemoryLog(1_000_000)
    await log.open()
    await log.append_many([draft(number) for number in range(30)])
    found = chunks(Store(log), EVERYTHING, frames, 1, 30, batch=10, pause=0.05, prefetch=0)
    read = [await anext(found)]
    found.wake()
    read.append(await anext(found))
    assert (read[1].data, read[1].count, read[1].next) == (b"", 0, 11)
    read += await all_of(found)
    assert [chunk.next for chunk in read if chunk.count] == [11, 21, 31]
    await log.close()


@in_event_loop
async def test_a_read_that_is_interrupted_is_not_complete() -> None:
    log = MemoryLog(1_000_000)
    await log.open()
    await log.append_many([draft(number) for number in range(30)])
    before = asyncio.all_tasks()
    found = chunks(Store(log), EVERYTHING, frames, 1, 30, batch=10, pause=60)
    assert (await anext(found)).next == 11
    [maker] = asyncio.all_tasks() - before
    maker.cancel()
    with pytest.raises(LogUnavailable, match="interrupted"):
        await anext(found)
    await log.close()


@in_event_loop
async def test_without_topics_only_the_topics_are_missing(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    stored = await log.append_many([draft(number) for number in range(5)])
    found = await log.read_in_thread("tide", 1, 5, 5, False, lambda batch, _: list(batch.notifications))
    assert [each.topic for each in found] == [""] * 5
    assert [(each.sequence, each.time, each.identifier, each.payload) for each in found] == [
        (each.sequence, each.time, each.identifier, each.payload) for each in stored
    ]
    again = await log.read_in_thread("tide", 1, 9, 9, True, lambda batch, _: (list(batch.notifications), batch.next))
    assert again == (list(stored), 10)
    assert await log.read_in_thread(
        "nobody", 1, 9, 9, True, lambda batch, trimmed: (len(batch.notifications), trimmed)
    ) == (0, 0)
    await log.close()
