"""The way through the files: everything once, in order, and never too much at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.filter import Filter
from aviso_server.pipeline.archive.layout import DataFile
from aviso_server.pipeline.cold.footers import Facts, RowGroup
from aviso_server.pipeline.cold.walk import Budget, Group, chunks, next_group

EVERYTHING = Filter("thing", "thing", "thing")
PINNED = Filter("thing", "thing", "thing", equals=(("name", "a"),))
ROW_BYTES = 100


class Known:
    """Facts about files that do not exist."""

    def __init__(self, files: dict[DataFile, Facts]) -> None:
        self._files = files

    def facts(self, file: DataFile) -> Facts:
        return self._files[file]


def lay_out(sizes: Sequence[Sequence[int]], with_column: Sequence[bool]) -> tuple[list[DataFile], Known]:
    """Files with row groups of these sizes; each covers one sequence more than it has rows."""
    sequence, files = 1, {}
    for groups, column in zip(sizes, with_column, strict=True):
        first, found = sequence, []
        for number, rows in enumerate(groups):
            found.append(RowGroup(number, sequence, sequence + rows - 1, 0, 0, rows, rows * ROW_BYTES))
            sequence += rows
        types = {"name": "string"} if column else {}
        files[DataFile(first, sequence, f"{first}")] = Facts(types, frozenset(types), tuple(found), True)
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
    while position <= end:
        group = next_group(files, footers, PINNED, position, end, Budget(most, 10**9))  # type: ignore[arg-type]  # only facts() is asked for
        if group is None:
            break
        assert group.first == position
        assert group.last >= position
        assert group.rows <= most or len(group.row_groups) == 1
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
        group = next_group(files, footers, PINNED, 15, 100, Budget(most, 10**9, files=True))  # type: ignore[arg-type]  # as above
        assert group is not None
        assert (group.rows, group.last) == (rows, files[whole - 1].last)


def test_bytes_bound_a_group_too() -> None:
    files, footers = lay_out([[10, 10, 10]], [True])
    group = next_group(files, footers, EVERYTHING, 1, 100, Budget(1000, 2_000))  # type: ignore[arg-type]  # as above
    assert group is not None
    assert (group.rows, group.last) == (20, 20)


def group_of(sizes: list[int]) -> Group:
    files, footers = lay_out([sizes], [True])
    group = next_group(files, footers, PINNED, 1, 10**9, Budget(10**9, 10**12))  # type: ignore[arg-type]  # as above
    assert group is not None
    return group


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.data(), st.integers(1, 500))
def test_chunks_have_all_hits_in_order_and_few_at_a_time(sizes: list[int], data: st.DataObject, most: int) -> None:
    group = group_of(sizes)
    hits = np.array(sorted(data.draw(st.sets(st.integers(1, sum(sizes)), max_size=300))), dtype=np.int64)
    found, before = [], 0
    for chunk in chunks(group, hits, Budget(most, 10**12), soon=data.draw(st.booleans())):
        inside = hits[(hits >= chunk.first) & (hits <= chunk.last)]
        assert chunk.first > before
        assert len(inside) <= most or chunk.picked is None or len(inside) <= max(sizes)
        if chunk.picked is not None:
            assert chunk.picked.tolist() == inside.tolist()
        found += inside.tolist()
        before = chunk.last
    assert found == hits.tolist()


def test_few_hits_are_picked_and_many_are_not() -> None:
    group = group_of([1000] * 10)
    (few,) = chunks(group, np.array([1, 2500, 9999]), Budget(10**6, 10**9))
    assert few.picked is not None
    (many,) = chunks(group, np.arange(1, 3001), Budget(10**6, 10**9))
    assert (many.first, many.last, many.picked, many.bounded) == (1, 3000, None, True)
    (most,) = chunks(group, np.arange(1, 10_001, 5), Budget(10**6, 10**9))
    assert (most.first, most.last, most.picked, most.bounded) == (1, 9996, None, False)


def test_row_groups_without_hits_are_left_out() -> None:
    group = group_of([100] * 30)
    hits = np.concatenate((np.arange(1, 101), np.arange(2501, 2601)))
    assert [(each.first, each.last) for each in chunks(group, hits, Budget(10**6, 10**9))] == [(1, 100), (2501, 2600)]


def test_what_is_wanted_soon_begins_with_one_row_group() -> None:
    group = group_of([1000] * 10)
    many = list(chunks(group, np.arange(1, 10_001, 5), Budget(10**6, 10**9), soon=True))
    assert [(each.first, each.last) for each in many] == [(1, 996), (1001, 9996)]
    (few,) = chunks(group, np.array([1, 2500, 9999]), Budget(10**6, 10**9), soon=True)
    assert few.picked is not None, "picking is quick as it is"


def test_no_hits_make_no_chunks() -> None:
    assert list(chunks(group_of([10, 10]), np.array([], dtype=np.int64), Budget(10, 10))) == []
