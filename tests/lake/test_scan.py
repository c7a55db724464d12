"""The way through the files of a table: windows that cover everything once, and from a time to a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.lake import scan
from aviso_server.lake.files import DataFile
from aviso_server.lake.scan import Scan, first_since, last_until, windows
from aviso_server.lake.table import Snapshot, Table
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from tests.spark.stored import store

EVERYTHING = Filter("thing", "thing", "thing")
PINNED = Filter("thing", "thing", "thing", equals=(("name", "a"),))
COLUMNS = {"sequence": "long", "name": "string"}


def snapshot(sizes: Sequence[int], whole: Sequence[bool], file_bytes: int = 1000) -> Snapshot:
    """Files with so many rows; each covers one sequence more."""
    sequence, files = 1, []
    for rows, all_there in zip(sizes, whole, strict=True):
        columns = frozenset({"name"}) if all_there else frozenset[str]()
        files.append(DataFile(sequence, sequence + rows, f"{sequence}", file_bytes, rows=rows, whole=columns))
        sequence += rows + 1
    return Snapshot(files=tuple(files), columns=COLUMNS)


@given(st.lists(st.sampled_from([0, 1, 30, 20_000, 49_999, 99_999, 400_000]), min_size=1, max_size=9), st.data())
def test_windows_cover_everything_once(sizes: list[int], data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    table = snapshot(sizes, whole)
    start = data.draw(st.integers(1, table.files[-1].last))
    end = data.draw(st.integers(start, table.files[-1].last + 5))
    found = list(windows(table, PINNED, start, end))
    for each in found:
        assert start <= each.first <= each.last <= end
        assert len({file.whole for file in each.files}) == 1, "they look the same"
        assert len(each.files) == 1 or sum(file.rows for file in each.files) <= 50_000
        assert all(file.rows and file.first <= each.last and each.first <= file.last for file in each.files)
    assert all(one.last < other.first for one, other in pairwise(found))
    covered = [each for each in table.files if each.rows and each.last >= start and each.first <= end]
    for file in covered:
        low, high = max(start, file.first), min(end, file.last)
        inside = [(max(low, each.first), min(high, each.last)) for each in found if file in each.files]
        assert inside[0][0] == low
        assert inside[-1][1] == high
        assert all(one[1] + 1 == other[0] for one, other in pairwise(inside))


def test_the_first_window_of_a_large_file_is_small_and_the_next_one_is_the_rest() -> None:
    table = snapshot([1_000_000, 1_000_000], [True, True])
    assert [(each.first, each.last) for each in windows(table, PINNED, 101, 1_500_000)] == [
        (101, 25_100),
        (25_101, 1_000_001),
        (1_000_002, 1_500_000),
    ]


def test_large_files_are_read_one_by_one_however_few_rows_they_have() -> None:
    assert len(list(windows(snapshot([10, 10, 10], [True] * 3), EVERYTHING, 1, 99))) == 1
    assert len(list(windows(snapshot([10, 10, 10], [True] * 3, 10**8), EVERYTHING, 1, 99))) == 3


# Reading --------------------------------------------------------------------------------------------------------------

KIND = GenericType("thing")


def notification(sequence: int, time: int) -> Notification:
    return Notification(sequence, time, "thing.a", b'{"x":"a"}', b"null")


def test_a_scan_stops_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, KIND, [notification(sequence, sequence) for sequence in range(1, 101)], group_rows=10)
    monkeypatch.setattr(scan, "_CHUNK_ROWS", 30)
    table = Table(str(tmp_path), "thing")
    (window,) = windows(table.snapshot(), EVERYTHING, 5, 98)
    reading = Scan(table.query(0), EVERYTHING, window, ("sequence",))
    found = [each["sequence"].to_pylist() for each in iter(reading.pull, None)]
    assert [sequence for each in found for sequence in each] == list(range(5, 99))
    assert [len(each) for each in found] == [36, 30, 28]  # whole row groups
    part = Scan(table.query(0), EVERYTHING, window, ("sequence",)).pull(lambda: True)
    assert part is not None
    assert part.num_rows == 6


def test_rows_that_are_not_in_order_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path, KIND, [notification(sequence, sequence) for sequence in (1, 2, 4, 3, 5)], group_rows=1)
    monkeypatch.setattr(scan, "_CHUNK_ROWS", 1)
    table = Table(str(tmp_path), "thing")
    (window,) = windows(table.snapshot(), EVERYTHING, 1, 5)
    with pytest.raises(Exception, match="is not in order"):
        list(iter(Scan(table.query(0), EVERYTHING, window).pull, None))


# From a point in time to a sequence -----------------------------------------------------------------------------------

# Files as lists of distances in time between neighbours.
TIMES = st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=6)


def archive(root: Path, steps: list[list[int]]) -> tuple[Table, list[Notification]]:
    """The first sequence is 11, and every file covers one sequence more than it has notifications."""
    sequence, time, every = 11, 100, []
    for file in steps:
        first, stored = sequence, []
        for step in file:
            time += step
            stored.append(notification(sequence, time))
            sequence += 1
        store(root, KIND, stored, first=first, last=sequence, group_rows=3)
        sequence += 1
        every += stored
    return Table(str(root), "thing"), every


@given(TIMES, st.integers(95, 130))
@settings(max_examples=30, deadline=None)
def test_bounds_are_those_of_a_search_through_everything(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]], time: int
) -> None:
    table, every = archive(tmp_path_factory.mktemp("archive"), steps)
    now = table.snapshot()
    later = [each.sequence for each in every if each.time >= time]
    earlier = [each.sequence for each in every if each.time <= time]
    assert first_since(table, now, time) == min(later, default=now.files[-1].last + 1)
    assert last_until(table, now, time) == max(earlier, default=now.files[0].first - 1)


def test_a_table_without_files_has_no_bounds(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "thing")
    assert first_since(table, table.snapshot(), 5) == 1
    assert last_until(table, table.snapshot(), 5) == 0


def test_one_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = archive(tmp_path, [[1, 1, 1]] * 12)
    now, asked = table.snapshot(), []
    ask = scan._asked

    def counted(query: Any, sql: str) -> Any:
        asked.append(sql)
        return ask(query, sql)

    monkeypatch.setattr(scan, "_asked", counted)
    assert first_since(table, now, 120) == now.files[6].first + 1
    assert last_until(table, now, 120) == now.files[6].first + 1
    assert len(asked) == 2
