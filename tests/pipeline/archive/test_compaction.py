"""Files of the archive: written, merged and cleaned, with every row as it was."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as some

from aviso_server.model.arrow import record_batch
from aviso_server.model.columns import STORED, columns_of
from aviso_server.model.definition import build_event_type
from aviso_server.model.notification import Box, Notification
from aviso_server.pipeline.archive.columns import FileShape
from aviso_server.pipeline.archive.compaction import Compactor, mergeable
from aviso_server.pipeline.archive.layout import DataFile, every_file, listing, stream_folder
from aviso_server.pipeline.archive.presence import holds
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.tombstones import Tombstones, mark_deleted, mark_wiped, read_tombstones
from aviso_server.pipeline.archive.writer import Draft, RangeWriter, is_draft
from tests.pipeline.archive.files import SHAPE, event_type, stored, write
from tests.pipeline.archive.keeping import archived


def compact(root: Path, everything: bool = False, grace: float = 600.0, target: int = 250_000) -> None:
    for _ in Compactor(Board(str(root), LOCAL), root / "_work", grace, target).run(everything):
        pass


def ranges(root: Path) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in listing(stream_folder(str(root), "flood"))]


def sequences(root: Path) -> list[int]:
    found: list[int] = archived(str(root), "flood").column("sequence").to_pylist()
    return found


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
    writer = RangeWriter(tmp_path, 1, 60_000, SHAPE.schema)
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


def test_a_change_of_columns_begins_a_new_file_and_leaves_no_gap(tmp_path: Path) -> None:
    other = FileShape("flood", columns_of(event_type(wind={"type": "FloatHandler", "required": False})))
    writer = RangeWriter(tmp_path, 1, 100, SHAPE.schema)
    drafts: list[Draft] = []
    for shape, numbers in ((SHAPE, [2, 3]), (SHAPE, [4]), (other, [50, 60]), (SHAPE, [70])):
        drafts += writer.add(shape.batch(stored(numbers)))
    drafts += writer.finish()
    assert [(each.first, each.last, each.rows) for each in drafts] == [(1, 4, 3), (5, 60, 2), (61, 100, 1)]


def test_a_range_without_rows_is_covered_all_the_same(tmp_path: Path) -> None:
    (draft,) = RangeWriter(tmp_path, 5, 9, SHAPE.schema).finish()
    assert (draft.first, draft.last, draft.rows) == (5, 9, 0)
    assert pq.read_schema(draft.path).equals(SHAPE.schema)


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = RangeWriter(tmp_path, 1, 30_000, SHAPE.schema)
    for batch in many(30_000):
        assert list(writer.add(batch)) == []
    assert [is_draft(each.name, "job") for each in tmp_path.iterdir()] == [True]
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
    assert len(mergeable(spans(*sizes))) == merged


def test_few_files_are_left_and_rows_are_seldom_rewritten() -> None:
    chance, files, rewritten, last = random.Random(1), [], 0, 0
    for _ in range(3000):
        size = chance.randint(1, 40)
        files.append(DataFile(last + 1, last + size, ""))
        last += size
        while group := mergeable(files, target=20_000):
            place = files.index(group[0])
            files[place : place + len(group)] = [DataFile(group[0].first, group[-1].last, "")]
            rewritten += group[-1].last - group[0].first + 1
        assert files[0].first == 1
        assert files[-1].last == last
    assert len(files) < 40
    assert rewritten < 6 * last
    while group := mergeable(files, target=20_000, everything=True):
        place = files.index(group[0])
        files[place : place + len(group)] = [DataFile(group[0].first, group[-1].last, "")]
    assert len(files) <= last // 20_000 + 1
    assert max(each.last - each.first + 1 for each in files) < 2 * 20_000


def test_merged_files_hold_what_their_parts_held(tmp_path: Path) -> None:
    for first in range(1, 101, 5):
        write(tmp_path, first, first + 4, missing={7, 8, 50, 96, 97, 98, 99, 100})
    before = archived(str(tmp_path), "flood")
    compact(tmp_path)
    assert len(ranges(tmp_path)) < 20
    assert archived(str(tmp_path), "flood").equals(before)
    compact(tmp_path, everything=True)
    assert ranges(tmp_path) == [(1, 100)]
    assert archived(str(tmp_path), "flood").equals(before)
    table = pq.read_table(listing(stream_folder(str(tmp_path), "flood"))[0].path)
    assert table.column("severity").to_pylist()[:2] == [2, 3]


def test_parts_stay_for_those_who_read_them_and_then_go(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write(tmp_path, first, first + 9)
    folder = stream_folder(str(tmp_path), "flood")
    compact(tmp_path, everything=True)
    assert len(every_file(LOCAL.list(folder))) == 4
    compact(tmp_path, everything=True)
    assert len(every_file(LOCAL.list(folder))) == 4
    (merged,) = listing(folder)
    (Path(folder) / "_draft-merge-1.parquet").write_bytes(b"half")
    os.utime(merged.path, (time.time() - 700,) * 2)
    compact(tmp_path, everything=True)
    assert [each.name for each in LOCAL.list(folder)] == [Path(merged.path).name]
    assert sequences(tmp_path) == list(range(1, 31))


def test_deleted_rows_leave_the_disk_and_their_marks_after_them(tmp_path: Path) -> None:
    write(tmp_path, 1, 50)
    write(tmp_path, 51, 100)
    folder = stream_folder(str(tmp_path), "flood")
    for sequence in (3, 60, 150):
        mark_deleted(folder, sequence)
    assert [holds(folder, sequence, LOCAL) for sequence in (2, 3, 60, 150)] == [True, False, False, False]
    compact(tmp_path, target=10)
    assert ranges(tmp_path) == [(1, 50), (51, 100)]
    assert sequences(tmp_path) == [number for number in range(1, 101) if number not in (3, 60)]
    assert read_tombstones(folder) == Tombstones(0, (150,)), "150 may be on its way into the archive"
    write(tmp_path, 101, 160)
    compact(tmp_path, target=10)
    assert sequences(tmp_path)[-10:] == list(range(151, 161))
    assert read_tombstones(folder) == Tombstones()


def test_a_wipe_wins_over_rows_that_come_after_it(tmp_path: Path) -> None:
    folder = stream_folder(str(tmp_path), "flood")
    write(tmp_path, 1, 50)
    mark_wiped(folder, 120)
    compact(tmp_path)
    assert sequences(tmp_path) == []
    assert read_tombstones(folder) == Tombstones(120)
    write(tmp_path, 51, 130)  # the job had read them before the wipe
    assert [holds(folder, sequence, LOCAL) for sequence in (51, 120, 121)] == [False, False, True]
    compact(tmp_path)
    assert sequences(tmp_path) == list(range(121, 131))
    assert read_tombstones(folder) == Tombstones()
    assert ranges(tmp_path)[0][0] == 1


def test_columns_that_came_went_or_changed_are_merged(tmp_path: Path) -> None:
    text = FileShape("flood", columns_of(event_type(severity={"type": "StringHandler", "required": False})))
    wind = FileShape("flood", columns_of(event_type(wind={"type": "FloatHandler", "required": False})))
    write(tmp_path, 1, 10, shape=text)
    write(tmp_path, 11, 20, shape=wind)
    write(tmp_path, 21, 30)
    compact(tmp_path, everything=True)
    (file,) = listing(stream_folder(str(tmp_path), "flood"))
    table = pq.read_table(file.path)
    assert table.schema.field("severity").type == pa.int64()
    assert table.column("severity").to_pylist() == [number % 7 + 1 for number in range(1, 31)]
    assert table.column("wind").to_pylist() == [None] * 30
    assert sequences(tmp_path) == list(range(1, 31))


def test_values_that_do_not_fit_a_new_type_are_null(tmp_path: Path) -> None:
    built, problems = build_event_type(
        "flood",
        {
            "topic": {"base": "flood", "key_order": []},
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
