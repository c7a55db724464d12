"""Deletes and wipes are on disk before anybody is told, and are hidden until the archive has confirmed them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aviso_server.archive.journal import Journal
from aviso_server.errors import LogUnavailable
from aviso_server.lake.removal_journal import Removal
from aviso_server.model.notification import Notification

FIVE = Removal("delete", "tides", 5)
NINE = Removal("delete", "tides", 9)
WIPE = Removal("wipe", "winds", 100)


def notifications(*sequences: int) -> list[Notification]:
    return [Notification(each, each, "tides.oslo", b"{}", b"null") for each in sequences]


async def opened(file: Path) -> Journal:
    journal = Journal(file)
    await journal.open()
    return journal


def test_what_is_pending_survives_a_crash(tmp_path: Path) -> None:
    async def run() -> None:
        journal = await opened(tmp_path / "work" / "removals.jsonl")
        for removal in (FIVE, NINE, WIPE):
            await journal.add(removal)
        await journal.settle(NINE)
        # no close: a crash
        again = await opened(tmp_path / "work" / "removals.jsonl")
        assert again.pending == [FIVE, WIPE]
        assert again.hides("tides", 5)
        assert not again.hides("tides", 9)
        assert again.hides("winds", 100)
        assert not again.hides("winds", 101)
        await again.settle(FIVE)
        await again.settle(WIPE)
        await again.close()
        last = await opened(tmp_path / "work" / "removals.jsonl")
        assert last.pending == []
        assert (tmp_path / "work" / "removals.jsonl").read_bytes() == b""

    asyncio.run(run())


def test_a_line_that_was_cut_off_is_no_line(tmp_path: Path) -> None:
    async def run() -> None:
        file = tmp_path / "removals.jsonl"
        journal = await opened(file)
        await journal.add(FIVE)
        whole = file.read_bytes()
        for length in range(len(whole) - 1):
            file.write_bytes(whole + whole[:length])
            assert (await opened(file)).pending == [FIVE]
        file.write_bytes(whole[:-2])
        assert (await opened(file)).pending == []

    asyncio.run(run())


def test_readers_do_not_see_what_was_removed_while_they_read(tmp_path: Path) -> None:
    async def run() -> None:
        journal = await opened(tmp_path / "removals.jsonl")
        await journal.add(FIVE)
        with journal.view("tides") as view, journal.view("winds") as other:
            assert view.visible(notifications(4, 5, 6)) == notifications(4, 6)
            await journal.settle(FIVE)
            assert view.visible(notifications(4, 5, 6)) == notifications(4, 6), "it may have been read before"
            await journal.add(NINE)
            assert view.visible(notifications(9, 10)) == notifications(10)
            await journal.add(Removal("wipe", "tides", 20))
            await journal.settle(Removal("wipe", "tides", 20))
            assert view.visible(notifications(19, 20, 21)) == notifications(21)
            assert other.visible(notifications(5, 9)) == notifications(5, 9)
        with journal.view("tides") as view:
            assert view.visible(notifications(5, 21)) == notifications(21)

    asyncio.run(run())


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "work").write_text("a file, not a folder")
        with pytest.raises(LogUnavailable, match="cannot be written"):
            await Journal(tmp_path / "work" / "removals.jsonl").open()
        journal = Journal(tmp_path / "removals.jsonl")
        with pytest.raises(LogUnavailable, match="not open"):
            await journal.add(FIVE)
        assert journal.pending == []

    asyncio.run(run())
