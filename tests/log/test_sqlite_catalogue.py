"""The catalogue is saved with every commit; one that an earlier version left behind is brought up to date."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.log.base import StreamState
from aviso_server.log.sqlite.backup import back_up, restore
from aviso_server.log.sqlite.database import DATABASE
from aviso_server.log.sqlite.ledger import LEDGER
from aviso_server.log.sqlite.log import SqliteLog
from tests.log.scenario import draft, in_event_loop, opened

FILES = (DATABASE, f"{DATABASE}-wal", LEDGER)


def crashed(directory: Path, target: Path) -> Path:
    """The log as it would be found if its process were killed now."""
    target.mkdir()
    for name in FILES:
        shutil.copy(directory / name, target / name)
    return target


def saved(directory: Path) -> int:
    with sqlite3.connect(f"file:{directory / DATABASE}?mode=ro", uri=True) as connection:
        last: int = connection.execute("SELECT last_sequence FROM catalogue").fetchone()[0]
    connection.close()
    return last


async def state(directory: Path) -> StreamState:
    async with opened(SqliteLog(directory)) as log:
        return await log.state("mars")


@in_event_loop
async def test_the_catalogue_is_saved_with_every_commit(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path / "log")) as log:
        for number in range(1, 6):
            await log.append(draft(number, padding=number))
            assert saved(tmp_path / "log") == number
        before = await log.state("mars")
        found = crashed(tmp_path / "log", tmp_path / "found")
    assert await state(found) == before


@in_event_loop
async def test_what_the_catalogue_of_an_earlier_version_lacks_is_counted(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path)) as log:
        for number in range(5):
            await log.append(draft(number, padding=number))
        before = await log.state("mars")
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute(
            "UPDATE catalogue SET last_sequence = 2, count = 2, largest = 1, "
            "bytes = (SELECT sum(size) FROM stream_1 WHERE sequence <= 2)"
        )
    connection.close()
    assert await state(tmp_path) == before


@in_event_loop
async def test_copies_of_a_running_log_are_described_and_continued_rightly(tmp_path: Path) -> None:
    async with opened(SqliteLog(tmp_path / "log")) as log:
        for number in range(5):
            await log.append(draft(number))
        copied = back_up(tmp_path / "log", tmp_path / "copy")
    assert (copied.streams, copied.notifications) == ({"mars": 5}, 5)
    assert restore(tmp_path / "copy", tmp_path / "other", advance=100).streams == {"mars": 105}
    async with opened(SqliteLog(tmp_path / "other")) as log:
        assert (await log.append(draft(1))).sequence == 106
        assert (await log.state("mars")).count == 6


STEPS = st.lists(st.one_of(st.just("append"), st.just("many"), st.just("wipe"), st.integers(1, 8)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_whatever_was_done_a_crash_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int]
) -> None:
    base = tmp_path_factory.mktemp("crash")

    async def scene() -> None:
        async with opened(SqliteLog(base / "log")) as log:
            await log.append(draft(0))
            for step in steps:
                if step == "append":
                    await log.append(draft(1))
                elif step == "many":
                    await log.append_many([draft(number, padding=number) for number in range(3)])
                elif step == "wipe":
                    await log.wipe("mars")
                else:
                    await log.delete("mars", int(step))
            before = await log.state("mars")
            found = crashed(base / "log", base / "found")
        assert await state(found) == before

    asyncio.run(scene())
