"""The files of a sqlite log: one owner at a time, and never a touch on a file that is not ours or not sound."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aviso_server.errors import LogDamaged, LogInUse, LogUnavailable
from aviso_server.log.sqlite.log import SqliteLog
from tests.log.scenario import draft, in_event_loop, opened, sequences

HOLD = """
import asyncio, sys
from pathlib import Path
from aviso_server.log.sqlite.log import SqliteLog

async def hold():
    await SqliteLog(Path(sys.argv[1])).open()
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(hold())
"""


async def fill(directory: Path, count: int = 2_000) -> None:
    async with opened(SqliteLog(directory)) as log:
        await log.append_many([draft(n, padding=200) for n in range(count)])


def contents(directory: Path) -> dict[str, bytes]:
    """What the database is made of; the lock and the shared index of running connections hold no data."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.name != "lock" and not path.name.endswith("-shm")
    }


@in_event_loop
async def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path / "data" / "log")) as log:
        assert (await log.append(draft(1))).sequence == 1
    assert (tmp_path / "data" / "log" / "log.sqlite").is_file()


@in_event_loop
async def test_a_second_log_in_this_process_is_refused(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        with pytest.raises(LogInUse, match=f"'{tmp_path}' is in use by the process with pid {os.getpid()}"):
            await SqliteLog(tmp_path).open()
        assert (await log.append(draft(1))).sequence == 1
    async with opened(SqliteLog(tmp_path)) as log:
        assert await sequences(log, "mars") == [1]


def test_a_directory_of_another_process_is_refused_until_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "held\n"
            with pytest.raises(LogInUse, match=f"'{tmp_path}' is in use by the process with pid {owner.pid}"):
                asyncio.run(SqliteLog(tmp_path).open())
        finally:
            owner.kill()
            owner.wait()
    asyncio.run(fill(tmp_path, 3))


@in_event_loop
async def test_a_refused_log_can_be_opened_once_the_directory_is_free(tmp_path: Path) -> None:
    late = SqliteLog(tmp_path)
    async with opened(SqliteLog(tmp_path)):
        with pytest.raises(LogInUse):
            await late.open()
        with pytest.raises(LogUnavailable, match="closed"):
            await late.append(draft(1))
        await late.close()
    async with opened(late):
        assert (await late.append(draft(1))).sequence == 1


def spoil_text(file: Path) -> None:
    file.write_text("these are my notes, not a database\n" * 100)


def spoil_empty(file: Path) -> None:
    file.write_bytes(b"")


def spoil_foreign(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.commit()
    connection.close()


def spoil_newer(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version=3")
    connection.commit()
    connection.close()


def spoil_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(page, len(content), page):
        content[start : start + 64] = os.urandom(64)
    file.write_bytes(content)


def spoil_one_page(file: Path) -> None:
    content = bytearray(file.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    middle = len(content) // page // 2 * page
    content[middle : middle + page] = bytes(page)
    file.write_bytes(content)


def spoil_half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def spoil_catalogue(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("INSERT INTO catalogue SELECT id + 1, 'tide', 0, 0, 0, 0, 0, 0, 0, 1 FROM catalogue")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_text, "it is not an SQLite database"),
        (spoil_empty, "it is not an SQLite database"),
        (spoil_foreign, "it is an SQLite database of another application"),
        (spoil_newer, "it has format 3 and this version reads only formats 1 to 2"),
        (spoil_pages, "SQLite"),
        (spoil_one_page, "SQLite"),
        (spoil_half, "SQLite"),
        (spoil_catalogue, "no such table: stream_2"),
    ],
)
def test_a_foreign_or_broken_file_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    asyncio.run(fill(tmp_path))
    file = tmp_path / "log.sqlite"
    spoil(file)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(LogDamaged) as refused:
            asyncio.run(SqliteLog(tmp_path).open())
        assert str(file) in str(refused.value)
        assert reason in str(refused.value)
        assert "Move the file and its ledger away" in str(refused.value)
        assert contents(tmp_path) == before
    file.unlink()
    with pytest.raises(LogDamaged, match=r"missing, but 'log\.ledger' beside it says"):
        asyncio.run(SqliteLog(tmp_path).open())
    (tmp_path / "log.ledger").unlink()
    asyncio.run(fill(tmp_path, 1))


@pytest.mark.parametrize("spoil", [spoil_text, spoil_pages, spoil_half])
def test_a_broken_file_with_changes_not_yet_in_it_is_refused_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    running, crashed = tmp_path / "running", tmp_path / "crashed"

    async def crash() -> None:
        await fill(running)
        async with opened(SqliteLog(running)) as log:
            await log.append_many([draft(n) for n in range(50)])
            shutil.copytree(running, crashed)

    asyncio.run(crash())
    spoil(crashed / "log.sqlite")
    before = contents(crashed)
    assert len(before["log.sqlite-wal"]) > 0
    with pytest.raises(LogDamaged, match="Nothing was changed"):
        asyncio.run(SqliteLog(crashed).open())
    assert contents(crashed) == before


@in_event_loop
async def test_changes_not_yet_in_the_file_are_found_after_a_crash(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path / "running")) as log:
        await log.append_many([draft(n) for n in range(50)])
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    async with opened(SqliteLog(tmp_path / "crashed")) as log:
        assert await sequences(log, "mars") == list(range(1, 51))


def test_a_write_ahead_log_without_its_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite-wal").write_bytes(b"left behind")
    with pytest.raises(LogDamaged, match=r"'log\.sqlite-wal' is there"):
        asyncio.run(SqliteLog(tmp_path).open())
    assert contents(tmp_path) == {"log.sqlite-wal": b"left behind"}


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    for path in (tmp_path / "log", tmp_path / "log" / "deeper"):
        with pytest.raises(LogDamaged, match="is not a directory"):
            asyncio.run(SqliteLog(path).open())
    assert (tmp_path / "log").read_text() == "a file"


def test_a_half_made_database_of_a_crash_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite.new").write_bytes(b"half of a database")
    asyncio.run(fill(tmp_path, 3))
    assert sorted(contents(tmp_path)) == ["log.ledger", "log.sqlite"]
