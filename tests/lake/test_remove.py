"""Deletes and wipes: one commit each, with a word about it in the footers, whoever else writes at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from aviso_server.lake.compact import Compactor
from aviso_server.lake.files import Covered
from aviso_server.lake.remove import Removals, Removed, applied, delete, wipe
from aviso_server.lake.table import Table, Tables
from tests.lake.scene import made, ranges, sequences, write


def reasons(table: Table) -> list[Covered]:
    return [table.covered(each) for each in table.snapshot().files]


def test_deleted_notifications_are_gone_with_one_commit(tmp_path: Path) -> None:
    write(tmp_path, 1, 50)
    table = write(tmp_path, 51, 100)
    before = table.snapshot().version
    assert delete(table, [3, 60, 61, 1000]) == {3, 60, 61}
    assert table.snapshot().version == before + 1
    assert sequences(tmp_path) == [number for number in range(1, 101) if number not in (3, 60, 61)]
    assert [each.deleted for each in reasons(table)] == [((3, 3),), ((60, 61),)]
    assert delete(table, [3]) == set()
    assert table.snapshot().version == before + 1, "what was done is not done again"


def test_what_the_archive_never_had_is_noted_as_deleted(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 50, missing={7, 8})
    assert delete(table, [7]) == set()
    assert reasons(table) == [Covered(1, 50, deleted=((7, 7),))]


def test_reasons_outlive_merges(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    table = write(tmp_path, 11, 20)
    delete(table, [10, 11])
    wipe(table, 4)
    for _ in Compactor(Tables(str(tmp_path))).run(everything=True):
        pass
    assert reasons(table) == [Covered(1, 20, deleted=((10, 11),), wiped=((1, 4),))]


def test_a_wipe_leaves_one_empty_file(tmp_path: Path) -> None:
    for first in (1, 11, 21, 31):
        table = write(tmp_path, first, first + 9)
    before = table.snapshot().version
    wipe(table, 25)
    assert table.snapshot().version == before + 1
    assert ranges(tmp_path) == [(1, 20), (21, 30), (31, 40)]
    assert sequences(tmp_path) == list(range(26, 41))
    assert (table.snapshot().watermark, table.snapshot().gapless) == (40, 40)
    wipe(table, 25)
    wipe(table, 100)
    assert sequences(tmp_path) == []
    assert (ranges(tmp_path), table.snapshot().gapless) == ([(1, 40)], 40)
    write(tmp_path, 41, 50)
    assert sequences(tmp_path) == list(range(41, 51))


def test_a_wipe_needs_nothing_of_the_files_that_it_removes(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        table = write(tmp_path, first, first + 9, missing={first + 8, first + 9})
    for each in table.snapshot().files[:2]:
        Path(each.path).unlink()
    wipe(table, 25)
    assert sequences(tmp_path) == [26, 27, 28]
    assert (ranges(tmp_path), table.snapshot().gapless) == ([(1, 20), (21, 30)], 30)
    Path(table.snapshot().files[-1].path).unlink()
    wipe(table, 30)
    assert (sequences(tmp_path), ranges(tmp_path)) == ([], [(1, 30)])


def test_rows_on_their_way_are_removed_before_they_are_committed(tmp_path: Path) -> None:
    table, removals = Table(str(tmp_path), "flood"), Removals()
    files = made(table, 1, 20)
    assert removals.add("flood", lambda: 0, deleted=[5, 30]) == 0
    with removals.settling("flood", 20) as removed:
        table.commit(applied(table.folder, files, removed), watermark=20, after=0)
    assert sequences(tmp_path) == [number for number in range(1, 21) if number != 5]
    assert reasons(table) == [Covered(1, 20, deleted=((5, 5),))]
    files = made(table, 21, 40)
    removals.add("flood", lambda: 20, wiped_through=35)
    with removals.settling("flood", 40) as removed:
        assert removed == Removed(35)
        table.commit(applied(table.folder, files, removed), watermark=40, after=20)
    assert sequences(tmp_path)[-6:] == [20, 36, 37, 38, 39, 40]
    with removals.settling("flood", 40) as removed:
        assert removed == Removed()


def test_removals_of_a_commit_that_failed_are_kept(tmp_path: Path) -> None:
    removals = Removals()
    removals.add("flood", lambda: 0, deleted=[5])
    with pytest.raises(OSError, match="no room"), removals.settling("flood", 20):
        raise OSError("no room")
    with removals.settling("flood", 20) as removed:
        assert removed == Removed(0, (5,))


def test_deletes_beside_an_archiver_and_a_compactor_lose_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    gone = set(range(3, 200, 7))

    def archive() -> None:
        for first in range(11, 201, 10):
            write(tmp_path, first, first + 9)

    def compact() -> None:
        while archiving.is_alive():
            for _ in Compactor(Tables(str(tmp_path)), target=60).run():
                pass

    def remove() -> None:
        table = Table(str(tmp_path), "flood")
        left = set(gone)
        while left:
            reached = table.snapshot().watermark
            ready = {each for each in left if each <= reached}
            assert delete(table, ready) == ready
            left -= ready

    archiving = threading.Thread(target=archive)
    threads = [archiving, threading.Thread(target=compact), threading.Thread(target=remove)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sequences(tmp_path) == [number for number in range(1, 201) if number not in gone]
