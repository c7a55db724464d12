"""Commits reach the database beside the writer, and the file they went to is used from its front again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aviso_server.log.sqlite.database import CHECKPOINT_SECONDS, DATABASE, PAGE_SIZE, WAL_PAGES, Checkpoints, prepare
from aviso_server.log.sqlite.ledger import Ledger
from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Draft
from tests.harness.patience import PATIENCE

PAYLOAD = b'"' + b"x" * 4000 + b'"'
AT_ONCE = 500


def test_the_file_ahead_stays_small_while_publishing_goes_on(tmp_path: Path) -> None:
    async def publish() -> tuple[int, int]:
        log = SqliteLog(tmp_path)
        await log.open()
        stored = 0
        try:
            while stored * len(PAYLOAD) < 4 * WAL_PAGES * PAGE_SIZE:
                drafts = [Draft("tide", f"tide.{stored + place}", b"{}", PAYLOAD) for place in range(AT_ONCE)]
                notifications = await log.append_many(drafts)
                stored += len(notifications)
                await asyncio.sleep(CHECKPOINT_SECONDS / 3)
            await asyncio.sleep(3 * CHECKPOINT_SECONDS)
            sizes = (tmp_path / DATABASE).stat().st_size, (tmp_path / f"{DATABASE}-wal").stat().st_size
            batch = await log.read("tide", 1, stored, 1000)
            assert [each.sequence for each in batch.notifications[:3]] == [1, 2, 3]
            assert (await log.state("tide")).count == stored
        finally:
            await log.close()
        return sizes

    database, ahead = asyncio.run(publish())
    assert database > 3 * WAL_PAGES * PAGE_SIZE, "the database has not grown while the log was open"
    assert ahead < 2 * WAL_PAGES * PAGE_SIZE, "the file ahead was not used again"


def test_a_stop_is_heard_however_late_it_comes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(prepare(tmp_path), Ledger(tmp_path, {}))
    clear = checkpoints._committed.clear

    def stop_and_clear() -> None:
        checkpoints._stopping.set()
        checkpoints._committed.set()
        clear()

    checkpoints._committed.clear = stop_and_clear  # type: ignore[method-assign]  # the moment that is the worst
    checkpoints.start()
    checkpoints.note_commit()
    checkpoints._thread.join(PATIENCE)
    assert not checkpoints._thread.is_alive()
