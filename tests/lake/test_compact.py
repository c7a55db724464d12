"""Files of a table: written, merged and removed, with every row as it was."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as some

from aviso_server.lake.compact import Compactor, mergeable
from aviso_server.lake.files import DataFile, FileWriter
from aviso_server.lake.remove import delete
from aviso_server.lake.schema import FileShape
from aviso_server.lake.table import Table, Tables
from aviso_server.model.batch import STORED, columns_of, record_batch
from aviso_server.model.event_type import build_event_type
from aviso_server.model.notification import Box, Notification
from tests.lake.scene import SHAPE, made, ranges, rows_in, sequences, stored, write


def compact(root: Path, everything: bool = False, target: int = 250_000) -> None:
    for _ in Compactor(Tables(str(root)), target).run(everything):
        pass


@given(some.lists(some.floats(-90, 90, width=64), min_size=1, max_size=20))
def test_boxes_never_become_smaller(values: list[float]) -> None:
    notes = [
        Notification(number, 0, "flood.x", b"{}", b"null", Box(value, value, value, value))
        for number, value in enumerate(values, 1)
    ]
    notes.append(Notification(len(notes) + 1, 0, "flood.x", b"{}", b"null", None))
    batch = SHAPE.batch(record_batch(STORED, "flood", notes))
    for name in ("box_min_lat", "box_min_lon"):
        assert all(low <= exact for low, exact in zip(batch.column(name).to_pylist(), values, strict=False))
    for name in ("box_max_lat", "box_max_lon"):
        assert all(high >= exact for high, exact in zip(batch.column(name).to_pylist(), values, strict=False))
    assert [batch.column(name)[len(values)].as_py() for name in ("box_min_lat", "box_max_lon")] == [None, None]
    widest = max(
        abs(high - exact) for high, exact in zip(batch.column("box_max_lat").to_pylist(), values, strict=False)
    )
    assert widest <= np.spacing(np.float32(90)), "and hardly larger"


def many(count: int) -> list[pa.RecordBatch]:
    """So many rows, numbered from 1."""
    thousand = pa.Table.from_batches([SHAPE.batch(stored(list(range(1, 1001))))])
    table = pa.concat_tables([thousand] * (count // 1000))
    return table.set_column(0, SHAPE.schema.field(0), pa.array(range(1, count + 1))).to_batches()


def test_row_groups_have_25_000_rows_and_statistics_to_skip_by(tmp_path: Path) -> None:
    writer = FileWriter(str(tmp_path), 1, 60_000, SHAPE.schema)
    drafts = [draft for batch in many(60_000) for draft in writer.add(batch)]
    (draft,) = [*drafts, *writer.finish()]
    assert (draft.first, draft.last, draft.rows) == (1, 60_000, 60_000)
    facts = pq.read_metadata(draft.path)
    assert [facts.row_group(n).num_rows for n in range(facts.num_row_groups)] == [25_000, 25_000, 10_000]
    columns = {
        facts.row_group(1).column(n).path_in_schema: facts.row_group(1).column(n) for n in range(facts.num_columns)
    }
    assert (columns["sequence"].statistics.min, columns["sequence"].statistics.max) == (25_001, 50_000)
    assert columns["severity"].statistics.has_min_max
    assert {each.compression for each in columns.values()} == {"ZSTD"}


def test_a_range_without_rows_is_covered_all_the_same(tmp_path: Path) -> None:
    (draft,) = FileWriter(str(tmp_path), 5, 9, SHAPE.schema).finish()
    assert (draft.first, draft.last, draft.rows) == (5, 9, 0)
    assert pq.read_schema(draft.path).remove_metadata().equals(SHAPE.schema)


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = FileWriter(str(tmp_path), 1, 30_000, SHAPE.schema)
    for batch in many(30_000):
        assert list(writer.add(batch)) == []
    assert len(list(tmp_path.iterdir())) == 1
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def spans(*sizes: int) -> list[DataFile]:
    files, first = [], 1
    for size in sizes:
        files.append(DataFile(first, first + size - 1, "", 10))
        first += size
    return files


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ([], 0),
        ([5], 0),
        ([3, 3], 0),
        ([3, 3, 3], 3),
        ([10, 10], 0),
        ([250_000, 250_000], 0),
        ([300_000, 1, 1], 0),
        ([130_000, 130_000], 2),
        ([8] * 8, 8),
        ([64, 8, 8], 0),
    ],
)
def test_neighbours_are_merged_when_they_reach_the_next_size(sizes: list[int], merged: int) -> None:
    assert [len(group) for group in mergeable(spans(*sizes))] == ([merged] if merged else [])


def test_few_files_are_left_and_rows_are_seldom_rewritten() -> None:
    chance, files, rewritten, last = random.Random(1), [], 0, 0
    for _ in range(3000):
        size = chance.randint(1, 40)
        files.append(DataFile(last + 1, last + size, ""))
        last += size
        while groups := mergeable(files, target=20_000):
            group = groups[-1]
            place = files.index(group[0])
            files[place : place + len(group)] = [DataFile(group[0].first, group[-1].last, "")]
            rewritten += group[-1].last - group[0].first + 1
        assert files[0].first == 1
        assert files[-1].last == last
    assert len(files) < 40
    assert rewritten < 6 * last
    while groups := mergeable(files, target=20_000, everything=True):
        group = groups[-1]
        place = files.index(group[0])
        files[place : place + len(group)] = [DataFile(group[0].first, group[-1].last, "")]
    assert len(files) <= last // 20_000 + 1
    assert max(each.last - each.first + 1 for each in files) < 2 * 20_000


def test_merged_files_hold_what_their_parts_held(tmp_path: Path) -> None:
    for first in range(1, 101, 5):
        write(tmp_path, first, first + 4, missing={7, 8, 50, 96, 97, 98, 99, 100})
    before = rows_in(tmp_path, "flood")
    compact(tmp_path)
    assert len(ranges(tmp_path)) < 20
    assert rows_in(tmp_path, "flood").equals(before)
    compact(tmp_path, everything=True)
    assert ranges(tmp_path) == [(1, 100)]
    assert rows_in(tmp_path, "flood").equals(before)
    table = pq.read_table(Table(str(tmp_path), "flood").snapshot().files[0].path)
    assert table.column("severity").to_pylist()[:2] == [2, 3]


def test_files_that_readers_hold_stay_and_then_go(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        table = write(tmp_path, first, first + 9)
    tables = Tables(str(tmp_path))
    with tables.of("flood").held() as before:
        for _ in Compactor(tables).run(everything=True):
            pass
        assert ranges(tmp_path) == [(1, 30)]
        assert Compactor(tables).vacuum(0) == 0, "somebody reads them"
        assert [pq.read_metadata(each.path).num_rows for each in before.files] == [10, 10, 10]
    assert table.vacuum(24) == 0, "outside readers may be at work on them"
    assert Compactor(tables).vacuum(0) == 3
    (file,) = table.snapshot().files
    assert [each.name for each in Path(table.folder).glob("*.parquet")] == [file.name]
    assert sequences(tmp_path) == list(range(1, 31))


def test_what_killed_writers_left_goes_with_the_replaced_files(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    (left,) = made(table, 11, 20)
    assert table.vacuum(24) == 0, "it may be about to be committed"
    os.utime(left.path, (time.time() - 25 * 3600,) * 2)
    assert table.vacuum(24) == 1
    assert not Path(left.path).exists()
    assert sequences(tmp_path) == list(range(1, 11))


def test_two_compactors_at_once_make_no_overlap(tmp_path: Path) -> None:
    for first in range(1, 41, 5):
        write(tmp_path, first, first + 4)
    before = rows_in(tmp_path, "flood")

    def work() -> None:
        for _ in Compactor(Tables(str(tmp_path)), target=20).run(everything=True):
            pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ranges(tmp_path) == [(1, 20), (21, 40)]
    assert rows_in(tmp_path, "flood").equals(before)


def test_values_that_do_not_fit_a_new_type_are_null(tmp_path: Path) -> None:
    built, problems = build_event_type(
        "flood",
        {
            "topic": {"base": "flood", "key_order": ["severity"]},
            "identifier": {"severity": {"type": "IntHandler", "required": False}},
        },
    )
    assert built is not None, problems
    words = [
        Notification(n, n, "flood", f'{{"severity":"{word}"}}'.encode(), b"1")
        for n, word in enumerate(["7", "high"], 1)
    ]
    shape = FileShape("flood", columns_of(built))
    batch = shape.batch(record_batch(STORED, "flood", words))
    assert batch.column("severity").to_pylist() == [7, None]
    assert batch.column("identifier").to_pylist()[1] == '{"severity":"high"}'


def test_a_table_that_cannot_be_read_keeps_no_other_from_being_vacuumed(tmp_path: Path) -> None:
    table, tables = write(tmp_path, 1, 10), Tables(str(tmp_path))
    delete(table, [3])
    strange = tmp_path / "a-strange-one" / "_delta_log"
    strange.mkdir(parents=True)
    (strange / f"{0:020d}.json").write_text("{}")
    assert tables.streams() == ["a-strange-one", "flood"]
    assert Compactor(tables).vacuum(0) == 1
