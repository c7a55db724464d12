"""Copies of a log: consistent while it is written to, checked, and put back only where there is none."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from aviso_server.errors import LogDamaged, LogError, LogInUse, LogUnavailable
from aviso_server.log.sqlite.backup import back_up, restore
from aviso_server.log.sqlite.database import DATABASE
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Draft, Notification


def draft(stream: str, number: int) -> Draft:
    return Draft(stream, f"{stream}.{number}", b'{"n":"%d"}' % number, b'"%d"' % number)


async def everything(path: Path, stream: str) -> list[Notification]:
    log = SqliteLog(path)
    await log.open()
    try:
        last = (await log.state(stream)).last
        found: list[Notification] = []
        start = 1
        while start <= last:
            batch = await log.read(stream, start, last, 1000)
            found += batch.notifications
            start = batch.next
        return found
    finally:
        await log.close()


async def fill(path: Path, count: int) -> None:
    log = SqliteLog(path)
    await log.open()
    await log.append_many([draft("a", number) for number in range(count)])
    await log.append(draft("b", 1))
    await log.close()


def test_round_trip(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 500))
    copied = back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    assert copied.streams == {"a": 500, "b": 1}
    assert copied.notifications == 501
    restored = restore(tmp_path / "copy.sqlite", tmp_path / "other")
    assert restored.streams == copied.streams
    for stream in ("a", "b"):
        assert asyncio.run(everything(tmp_path / "other", stream)) == asyncio.run(everything(tmp_path / "log", stream))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.sqlite", "log", "other"]


def test_a_copy_is_one_moment_of_a_busy_log(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        log = SqliteLog(tmp_path / "log")
        await log.open()
        # large enough to be copied in several steps while it grows
        payload = b'"' + b"x" * 20_000 + b'"'
        await log.append_many([Draft("a", "a.x", b"{}", payload) for _ in range(2_000)])
        stop = asyncio.Event()

        async def publish() -> None:
            while not stop.is_set():
                await log.append_many([draft("a", 0), draft("b", 0)])

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0.05)
        before = (await log.state("a")).last
        steps: list[int] = []
        copied = await asyncio.to_thread(
            back_up, tmp_path / "log", tmp_path / "copy.sqlite", lambda done, total: steps.append(done)
        )
        stop.set()
        await publishing
        after = (await log.state("a")).last
        await log.close()
        assert len(steps) > 1
        assert steps == sorted(steps), "it never began anew"
        assert before <= copied.streams["a"] <= after
        return copied.streams["a"], copied.streams["b"]

    a, b = asyncio.run(scenario())
    assert a == b + 2_000, "both streams of a commit are in it, or neither"
    restore(tmp_path / "copy.sqlite", tmp_path / "other")
    found = asyncio.run(everything(tmp_path / "other", "a"))
    assert [each.sequence for each in found] == list(range(1, a + 1))


def test_numbering_can_go_on_further_up(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 3))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    assert restore(tmp_path / "copy.sqlite", tmp_path / "other", advance=1000).streams == {"a": 1003, "b": 1001}

    async def next_one() -> int:
        log = SqliteLog(tmp_path / "other")
        await log.open()
        stored = await log.append(draft("a", 9))
        await log.close()
        return stored.sequence

    assert asyncio.run(next_one()) == 1004
    assert [each.sequence for each in asyncio.run(everything(tmp_path / "other", "a"))] == [1, 2, 3, 1004]


def test_only_the_owner_may_read_a_copy(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 1))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 1))
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(LogUnavailable, match="exists already"):
        back_up(tmp_path / "log", tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"mine"
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    before = (tmp_path / "log" / DATABASE).read_bytes()
    with pytest.raises(LogDamaged, match="without a log"):
        restore(tmp_path / "copy.sqlite", tmp_path / "log")
    assert (tmp_path / "log" / DATABASE).read_bytes() == before


def test_a_log_in_use_is_not_restored_into(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 1))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")

    async def scenario() -> None:
        log = SqliteLog(tmp_path / "used")
        await log.open()
        with pytest.raises(LogInUse):
            restore(tmp_path / "copy.sqlite", tmp_path / "used")
        await log.close()

    asyncio.run(scenario())


def test_a_changes_file_without_its_database_is_in_the_way(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 1))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{DATABASE}-wal").write_bytes(b"x")
    with pytest.raises(LogDamaged, match="without a log"):
        restore(tmp_path / "copy.sqlite", tmp_path / "other")


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\x00" + b"\0" * 4096])
def test_only_copies_of_logs_are_restored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "copy.sqlite").write_bytes(content)
    with pytest.raises(LogDamaged):
        restore(tmp_path / "copy.sqlite", tmp_path / "other")
    assert not (tmp_path / "other" / DATABASE).exists()


def test_a_broken_copy_is_refused(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "log", 2000))
    back_up(tmp_path / "log", tmp_path / "copy.sqlite")
    content = bytearray((tmp_path / "copy.sqlite").read_bytes())
    content[8192 * 3 : 8192 * 4] = b"\xff" * 8192
    (tmp_path / "copy.sqlite").write_bytes(content)
    with pytest.raises(LogDamaged):
        restore(tmp_path / "copy.sqlite", tmp_path / "other")
    assert not (tmp_path / "other" / DATABASE).exists()


@pytest.mark.parametrize("where", ["nothing here", "gone/deep"])
def test_places_that_do_not_exist(where: str, tmp_path: Path) -> None:
    with pytest.raises(LogError):
        back_up(tmp_path / where, tmp_path / "copy.sqlite")
    with pytest.raises(LogError):
        restore(tmp_path / where, tmp_path / "other")
    asyncio.run(fill(tmp_path / "log", 1))
    with pytest.raises(LogUnavailable, match="does not exist"):
        back_up(tmp_path / "log", tmp_path / "gone" / "copy.sqlite")
