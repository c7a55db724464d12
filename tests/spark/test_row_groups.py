"""Row groups: the way through them, once and in order, never too much at a time; and from a time to a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.lake.files import DataFile
from aviso_server.lake.storage import LOCAL
from aviso_server.lake.table import Table
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.spark.row_groups import (
    Budget,
    Facts,
    Footers,
    Found,
    Group,
    RowGroup,
    first_since,
    last_until,
    next_group,
    parts,
)
from tests.spark.stored import store

EVERYTHING = Filter("thing", "thing", "thing")
PINNED = Filter("thing", "thing", "thing", equals=(("name", "a"),))
ROW_BYTES = 100


class Known:
    """Facts about files that do not exist."""

    def __init__(self, files: dict[DataFile, Facts]) -> None:
        self._files = files

    def facts(self, file: DataFile) -> Facts:
        return self._files[file]


def lay_out(
    sizes: Sequence[Sequence[int]], with_column: Sequence[bool], row_bytes: int = ROW_BYTES
) -> tuple[list[DataFile], Known]:
    """Files with row groups of these sizes; each covers one sequence more than it has rows."""
    sequence, files = 1, {}
    for groups, column in zip(sizes, with_column, strict=True):
        first, found = sequence, []
        file = DataFile(first, first + sum(groups), f"{first}")
        for number, rows in enumerate(groups):
            size = rows * row_bytes
            found.append(RowGroup(file, number, sequence, sequence + rows - 1, 0, 0, rows, size, size))
            sequence += rows
        types = {"name": "string"} if column else {}
        files[file] = Facts(types, frozenset(types), tuple(found), True)
        sequence += 1
    return list(files), Known(files)


SIZES = st.lists(st.lists(st.integers(1, 30), max_size=4), min_size=1, max_size=6)


@given(SIZES, st.data(), st.integers(1, 90))
def test_groups_cover_everything_once(sizes: list[list[int]], data: st.DataObject, most: int) -> None:
    with_column = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    files, footers = lay_out(sizes, with_column)
    last = files[-1].last
    start = data.draw(st.integers(1, last))
    end = data.draw(st.integers(start, last + 5))
    position = start
    taken: list[RowGroup] = []
    budget = Budget(most, 10**9, data.draw(st.integers(1, 6)))
    while position <= end:
        group = next_group(files, footers, PINNED, position, end, budget)  # type: ignore[arg-type]  # only facts() is asked for
        if group is None:
            break
        assert group.first == position
        assert group.last >= position
        assert group.rows <= most or len(group.files) == 1
        assert len(group.files) <= budget.files
        assert len({footers.facts(file).types == {} for file in group.files}) <= 1  # they look the same
        assert all(group.first <= each.last and each.first <= group.last for each in group.row_groups)
        taken += group.row_groups
        position = group.last + 1
    assert position > min(end, last)
    every = [group for file in files for group in footers.facts(file).groups]
    assert taken == [group for group in every if group.last >= start and group.first <= end]


def test_a_group_ends_where_a_file_does_rather_than_in_the_middle_of_the_next() -> None:
    files, footers = lay_out([[10, 10], [10, 10], [10, 10]], [True] * 3)
    group = next_group(files, footers, PINNED, 1, 100, Budget(50, 10**9))  # type: ignore[arg-type]  # as above
    assert group is not None
    assert (group.rows, group.last) == (40, files[1].last)


def test_whole_files_are_never_cut() -> None:
    files, footers = lay_out([[10, 10], [10, 10], [10, 10]], [True] * 3)
    for most, rows, whole in ((1, 10, 1), (29, 10, 1), (30, 30, 2)):  # the first row group is behind us
        group = next_group(files, footers, PINNED, 15, 100, Budget(most, 10**9))  # type: ignore[arg-type]  # as above
        assert group is not None
        assert (group.rows, group.last) == (rows, files[whole - 1].last)


def test_shapes_bound_a_group_too() -> None:
    files, footers = lay_out([[10, 10, 10]], [True])
    group = next_group(files, footers, EVERYTHING, 1, 100, Budget(1000, 2_000))  # type: ignore[arg-type]  # as above
    assert group is not None
    assert (group.rows, group.last) == (20, 20)


def group_of(sizes: list[int], row_bytes: int = ROW_BYTES) -> Group:
    files, footers = lay_out([sizes], [True], row_bytes)
    group = next_group(files, footers, PINNED, 1, 10**9, Budget(10**9, 10**15))  # type: ignore[arg-type]  # as above
    assert group is not None
    return group


def hits(sequences: Sequence[int]) -> Found:
    found = np.array(sequences, dtype=np.int64)
    return Found(found, found % 3 == 0)


LARGE = 10_000_000  # bytes of a row: so that everything is worth to be picked


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.data(), st.sampled_from([ROW_BYTES, LARGE]))
def test_parts_have_all_hits_in_order_and_few_at_a_time(sizes: list[int], data: st.DataObject, row_bytes: int) -> None:
    group = group_of(sizes, row_bytes)
    found = hits(sorted(data.draw(st.sets(st.integers(1, sum(sizes)), max_size=300))))
    seen: list[int] = []
    doubtful: list[bool] = []
    for part in parts(group, found):
        assert part.found is not None
        inside = part.found.sequences.tolist()
        assert inside, "nothing is read in vain"
        assert len(part.row_groups) == 1 or part.picked
        holding = [each for each in group.row_groups if any(each.first <= sequence <= each.last for sequence in inside)]
        assert list(part.row_groups) == holding
        seen += inside
        doubtful += part.found.doubtful.tolist()
    assert seen == found.sequences.tolist()
    assert doubtful == found.doubtful.tolist()


def test_everything_is_read_row_group_by_row_group() -> None:
    group = group_of([10, 20, 30])
    assert [(part.row_groups, part.limits) for part in parts(group, None)] == [
        ((each,), (group.first, group.last)) for each in group.row_groups
    ]


def test_few_hits_in_much_are_picked_and_others_are_not() -> None:
    much, little = group_of([1000] * 10, LARGE), group_of([1000] * 10)
    (few,) = parts(much, hits([1, 2500, 9999]))
    assert few.picked
    assert [each.number for each in few.row_groups] == [0, 2, 9]
    assert [part.picked for part in parts(little, hits([1, 2500, 9999]))] == [False] * 3
    assert [part.picked for part in parts(much, hits(range(1, 3001)))] == [False] * 3


def test_not_too_many_are_picked_at_once() -> None:
    group = group_of([20] * 200, LARGE)
    found = hits(range(1, 4001, 3))
    picked = list(parts(group, found))
    assert all(part.picked for part in picked)
    assert [len(part.found.sequences) for part in picked if part.found is not None] == [1024, 310]


def test_no_hits_make_no_parts() -> None:
    assert list(parts(group_of([10, 10]), hits([]))) == []


# From a point in time to a sequence -----------------------------------------------------------------------------------

KIND = GenericType("thing")

# Files as lists of row groups as lists of times; every file covers one sequence more than it has notifications.
TIMES = st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=6)


def notification(sequence: int, time: int) -> Notification:
    return Notification(sequence, time, "thing.a", b'{"x":"a"}', b"null")


def archive(root: Path, steps: list[list[int]]) -> tuple[list[DataFile], list[Notification]]:
    """Files with these distances in time between neighbours; the first sequence is 11, and gaps follow each file."""
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
    return list(Table(str(root), "thing").snapshot().files), every


@given(TIMES, st.integers(95, 130))
@settings(max_examples=80)
def test_bounds_are_those_of_a_search_through_everything(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]], time: int
) -> None:
    files, every = archive(tmp_path_factory.mktemp("archive"), steps)
    footers = Footers(lambda file: LOCAL.open(file.path))
    later = [each.sequence for each in every if each.time >= time]
    earlier = [each.sequence for each in every if each.time <= time]
    assert first_since(files, footers, time) == min(later, default=files[-1].last + 1)
    assert last_until(files, footers, time) == max(earlier, default=files[0].first - 1)


def test_an_archive_without_files_has_no_bounds() -> None:
    footers = Footers(lambda file: LOCAL.open(file.path))
    assert first_since([], footers, 5) == 1
    assert last_until([], footers, 5) == 0


def test_only_a_few_files_are_looked_at(tmp_path: Path) -> None:
    files, _ = archive(tmp_path, [[1, 1, 1]] * 60)
    opened = []

    def open_file(file: DataFile) -> object:
        opened.append(file.first)
        return LOCAL.open(file.path)

    footers = Footers(open_file)
    assert first_since(files, footers, 190) == files[29].first + 2
    assert len(set(opened)) < 10
    before = len(opened)
    assert first_since(files, footers, 190) == files[29].first + 2
    assert len(opened) - before <= 1  # footers are remembered, rows are not
