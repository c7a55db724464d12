"""Pieces that threads of the log make: all of them, once, in order, and no more than somebody takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviso_server.counts import Operations
from aviso_server.delivery.piece import Piece
from aviso_server.delivery.pouring import Pour
from aviso_server.errors import LogUnavailable
from aviso_server.log.base import Batch, Read
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.cloudevent import REPLAY, Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Draft, Notification
from tests.log.scenario import in_event_loop

EVERYTHING = Filter("tide", "tide", "tide.*")
OSLO = Filter("tide", "tide", "tide.*", (("port", "oslo"),))
RENDERER = Renderer("tide", "http://localhost")


def draft(number: int, size: int = 10) -> Draft:
    port = "oslo" if number % 3 else "kiel"
    return Draft("tide", f"tide.{port}", b'{"port":"%b"}' % port.encode(), b'"%b"' % (b"x" * size))


def frames(notifications: Sequence[Notification]) -> bytes:
    return bytes(RENDERER.frames(REPLAY, notifications))


async def all_of(pour: Pour) -> list[Piece]:
    pieces = []
    while (piece := await pour.next()) is not None:
        pieces.append(piece)
    return pieces


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 9_000),
    removed=st.lists(st.integers(1, 9_000), max_size=5),
    start=st.integers(1, 9_000),
    end=st.integers(1, 10_000),
    room=st.none() | st.integers(0, 5_000),
    plain=st.booleans(),
    wanted=st.sampled_from([EVERYTHING, OSLO]),
)
def test_pieces_are_what_a_plain_read_finds(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    removed: list[int],
    start: int,
    end: int,
    room: int | None,
    plain: bool,
    wanted: Filter,
) -> None:
    async def scene() -> None:
        log = SqliteLog(tmp_path_factory.mktemp("log"))
        await log.open()
        stored = await log.append_many([draft(number) for number in range(count)])
        for sequence in removed:
            await log.delete("tide", sequence)
        gapless = not set(removed) & set(range(1, count + 1))
        last = min(end, count)
        pour = Pour(log, Operations(), wanted, frames, start, last, room, plain, gapless)
        pieces = await all_of(pour)
        matching = [
            each
            for each in stored
            if start <= each.sequence <= last and each.sequence not in removed and wanted.matches(each)
        ]
        if room is not None and len(matching) > room:
            assert [piece.more for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            matching = matching[:room]
        else:
            assert not any(piece.more for piece in pieces)
            assert not pieces or pieces[-1].next > last
        assert sum(piece.count for piece in pieces) == len(matching)
        assert b"".join(piece.data for piece in pieces) == b"".join(RENDERER.frame(REPLAY, each) for each in matching)
        await log.close()

    asyncio.run(scene())


@in_event_loop
async def test_what_is_deleted_meanwhile_does_not_confuse_the_threads(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    await log.append_many([draft(number) for number in range(20_000)])
    pour = Pour(log, Operations(), EVERYTHING, frames, 1, 20_000, None, plain=True, gapless=True)
    first = await pour.next()
    assert first is not None
    for sequence in (19_000, 19_001, 20_000):
        assert await log.delete("tide", sequence)
    pieces = [first, *await all_of(pour)]
    assert sum(piece.count for piece in pieces) == 20_000 - 3
    assert pieces[-1].next == 20_001
    await log.close()


@in_event_loop
async def test_large_notifications_make_small_pieces(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    for _ in range(8):
        await log.append_many([draft(number, 100_000) for number in range(25)])
    pour = Pour(log, Operations(), EVERYTHING, frames, 1, 200, None, plain=True, gapless=True)
    pieces = await all_of(pour)
    assert sum(piece.count for piece in pieces) == 200
    assert max(piece.count for piece in pieces) <= 10
    await log.close()


@in_event_loop
async def test_a_part_is_finished_though_notifications_have_become_larger(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    stored = list(await log.append_many([draft(number) for number in range(10_000)]))
    pour = Pour(log, Operations(), EVERYTHING, frames, 1, 10_000, None, plain=True, gapless=True)
    await log.append(draft(1, 9_000_000))  # from now on a read returns one notification
    pieces = await all_of(pour)
    assert b"".join(piece.data for piece in pieces) == b"".join(RENDERER.frame(REPLAY, each) for each in stored)
    await log.close()


class CountingLog(SqliteLog):
    """Counts the reads of threads, and fails from a sequence on."""

    def __init__(self, directory: Path, fails_at: int = 2**62) -> None:
        super().__init__(directory)
        self.fails_at = fails_at
        self.reads = 0
        self._counting = threading.Lock()

    async def in_thread(self, stream: str, work: object, topics: bool = True) -> None:
        assert callable(work)

        def counted(read: Read) -> None:
            def counting(start: int, end: int, limit: int) -> Batch:
                with self._counting:
                    self.reads += 1
                if start >= self.fails_at:
                    raise LogUnavailable("the disk is gone")
                return read(start, end, limit)

            work(counting)

        await super().in_thread(stream, counted, topics)


@pytest.mark.parametrize(("plain", "most"), [(True, 4), (False, 2)])
def test_no_more_is_made_than_somebody_takes(tmp_path: Path, plain: bool, most: int) -> None:
    async def scene() -> None:
        log = CountingLog(tmp_path / "log")
        await log.open()
        await log.append_many([draft(number) for number in range(60_000)])
        pour = Pour(log, Operations(), EVERYTHING, frames, 1, 60_000, None, plain, gapless=True)
        for taken in range(1, 4):
            assert await pour.next() is not None
            await asyncio.sleep(0.2)
            assert log.reads == taken + most
        pour.close()
        await asyncio.sleep(0.1)
        assert log.reads == 3 + most
        await log.close()

    asyncio.run(scene())


@pytest.mark.parametrize("plain", [True, False])
def test_all_that_could_be_read_comes_before_the_failure(tmp_path: Path, plain: bool) -> None:
    async def scene() -> None:
        log = CountingLog(tmp_path / "log", fails_at=6_000)
        await log.open()
        await log.append_many([draft(number) for number in range(20_000)])
        operations = Operations()
        pour = Pour(log, operations, EVERYTHING, frames, 1, 20_000, None, plain, gapless=True)
        reached = 1
        with pytest.raises(LogUnavailable, match="the disk is gone"):  # noqa: PT012  # nobody knows after how many
            while (piece := await pour.next()) is not None:
                assert piece.next - piece.count == reached
                reached = piece.next
        assert 6_000 <= reached < 6_000 + 2_048
        with pytest.raises(LogUnavailable):
            await pour.next()
        assert operations.durations["get_batch", "ok"].total >= 3
        assert operations.durations["get_batch", "error"].total >= 1
        await log.close()

    asyncio.run(scene())


@in_event_loop
async def test_without_topics_only_the_topics_are_missing(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    await log.open()
    stored = await log.append_many([draft(number) for number in range(5)])
    found: list[Notification] = []
    await log.in_thread("tide", lambda read: found.extend(read(1, 5, 5).notifications), topics=False)
    assert [each.topic for each in found] == [""] * 5
    assert [(each.sequence, each.time, each.identifier, each.payload) for each in found] == [
        (each.sequence, each.time, each.identifier, each.payload) for each in stored
    ]
    await log.in_thread("tide", lambda read: found.extend(read(1, 9, 9).notifications))
    assert found[5:] == list(stored)
    await log.in_thread("nobody", lambda read: found.extend(read(1, 9, 9).notifications))
    assert len(found) == 10
    await log.close()
