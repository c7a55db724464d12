"""From a point in time to a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviso_server.model.notification import Notification
from aviso_server.model.schema import GenericType
from aviso_server.pipeline.archive.layout import DataFile, listing
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.cold import seek
from aviso_server.pipeline.cold.footers import Footers
from tests.pipeline.cold.scene import store

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
    return listing(str(root / "thing")), every


@given(TIMES, st.integers(95, 130))
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bounds_are_those_of_a_search_through_everything(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]], time: int
) -> None:
    files, every = archive(tmp_path_factory.mktemp("archive"), steps)
    footers = Footers(lambda file: LOCAL.open(file.path))
    later = [each.sequence for each in every if each.time >= time]
    earlier = [each.sequence for each in every if each.time <= time]
    assert seek.first_since(files, footers, time) == min(later, default=files[-1].last + 1)
    assert seek.last_until(files, footers, time) == max(earlier, default=files[0].first - 1)


def test_an_archive_without_files_has_no_bounds() -> None:
    footers = Footers(lambda file: LOCAL.open(file.path))
    assert seek.first_since([], footers, 5) == 1
    assert seek.last_until([], footers, 5) == 0


def test_only_a_few_files_are_looked_at(tmp_path: Path) -> None:
    files, _ = archive(tmp_path, [[1, 1, 1]] * 60)
    opened = []

    def open_file(file: DataFile) -> object:
        opened.append(file.first)
        return LOCAL.open(file.path)

    footers = Footers(open_file)
    assert seek.first_since(files, footers, 190) == files[29].first + 2
    assert len(set(opened)) < 10
    before = len(opened)
    assert seek.first_since(files, footers, 190) == files[29].first + 2
    assert len(opened) - before <= 1  # footers are remembered, rows are not
