"""Names of files and folders, which files count, and what is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from aviso_server.pipeline.archive.layout import (
    DataFile,
    data_path,
    file_name,
    hidden,
    holes,
    listing,
    stream_folder,
    streams,
    visible,
    watermark,
)
from aviso_server.pipeline.archive.storage import LOCAL, is_local, local_path
from aviso_server.pipeline.archive.tombstones import (
    Tombstones,
    forget,
    look,
    mark_deleted,
    mark_wiped,
    read_tombstones,
)


def put(root: Path, stream: str, *ranges: tuple[int, int]) -> None:
    for first, last in ranges:
        LOCAL.write(data_path(str(root), stream, first, last), b"data")


def shown(files: list[DataFile]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in files]


def test_a_file_is_named_by_what_it_covers() -> None:
    assert file_name(1, 250_000) == "00000000000000000001-00000000000000250000.parquet"


@pytest.mark.parametrize("stream", ["mars", "MARS", "a/b", "Zürich", "50%", "_hidden", ".hidden", "..", "a b"])
def test_every_stream_has_a_folder_of_its_own_and_is_found_again(tmp_path: Path, stream: str) -> None:
    put(tmp_path, stream, (1, 2))
    assert list(streams(str(tmp_path))) == [stream]
    folder = Path(stream_folder(str(tmp_path), stream))
    assert folder.parent == tmp_path
    assert folder.name[0] not in "._"
    assert shown(listing(streams(str(tmp_path))[stream])) == [(1, 2)]


def test_what_is_no_data_is_not_listed(tmp_path: Path) -> None:
    put(tmp_path, "mars", (1, 10))
    folder = Path(stream_folder(str(tmp_path), "mars"))
    for name in ("_draft-1.parquet", ".part.crc", "1-10.parquet", f"{file_name(11, 20)}.tmp", file_name(9, 8)):
        (folder / name).write_bytes(b"")
    (folder / file_name(21, 30)).mkdir()
    LOCAL.write(str(tmp_path / "_lock"), b"1")
    assert shown(listing(str(folder))) == [(1, 10)]
    assert list(streams(str(tmp_path))) == ["mars"]
    assert listing(str(tmp_path / "nothing")) == []
    assert streams(str(tmp_path / "nothing")) == {}


def test_a_file_hides_those_it_covers(tmp_path: Path) -> None:
    put(tmp_path, "mars", (1, 10), (11, 20), (21, 30), (1, 20), (31, 40), (21, 40))
    files = listing(stream_folder(str(tmp_path), "mars"))
    assert shown(files) == [(1, 20), (21, 40)]
    assert watermark(files) == 40
    assert watermark([]) == 0


@given(some.lists(some.integers(1, 9), min_size=1, max_size=12), some.data())
def test_merging_any_neighbours_changes_nothing_that_is_covered(sizes: list[int], data: some.DataObject) -> None:
    files, first = [], 1
    for size in sizes:
        files.append(DataFile(first, first + size - 1, ""))
        first += size
    everything = list(files)
    for _ in range(data.draw(some.integers(0, 5))):
        seen = visible(everything)
        low = data.draw(some.integers(0, len(seen) - 1))
        high = data.draw(some.integers(low, len(seen) - 1))
        merged = DataFile(seen[low].first, seen[high].last, "")
        if merged not in everything:
            everything.append(merged)
    left = visible(everything)
    assert [n for each in left for n in range(each.first, each.last + 1)] == list(range(1, first))
    assert holes(left) == []
    assert sorted([*left, *(file for file, _ in hidden(everything))]) == sorted(everything)


def test_files_that_are_missing_are_noticed() -> None:
    files = [DataFile(1, 10, ""), DataFile(21, 30, ""), DataFile(31, 31, ""), DataFile(40, 50, "")]
    assert holes(files) == [(11, 20), (32, 39)]


def test_marks_of_deletes_and_wipes(tmp_path: Path) -> None:
    folder = stream_folder(str(tmp_path), "mars")
    assert read_tombstones(folder) == Tombstones()
    for sequence in (42, 7, 1001, 42):
        mark_deleted(folder, sequence)
    assert read_tombstones(folder) == Tombstones(0, (7, 42, 1001))
    mark_wiped(folder, 1000)
    mark_wiped(folder, 10)
    put(tmp_path, "mars", (1, 2000))
    marks, files = look(folder)
    assert shown(files) == [(1, 2000)]
    assert marks == Tombstones(1000, (1001,))
    assert [n for n in (1, 7, 999, 1000, 1001, 1002) if marks.hides(n)] == [1, 7, 999, 1000, 1001]
    assert marks.touches(1000, 1000)
    assert marks.touches(1001, 1005)
    assert not marks.touches(1002, 5000)
    assert list(streams(str(tmp_path))) == ["mars"]


def test_marks_go_only_when_they_are_settled(tmp_path: Path) -> None:
    folder = stream_folder(str(tmp_path), "mars")
    mark_deleted(folder, 5)
    mark_deleted(folder, 50)
    mark_wiped(folder, 20)
    seen = read_tombstones(folder)
    mark_deleted(folder, 30)  # came after the look
    forget(folder, seen, through=10)
    assert read_tombstones(folder) == Tombstones(20, (30, 50)), "the archive may still get what is above 10"
    forget(folder, seen, through=40)
    assert read_tombstones(folder) == Tombstones(0, (30, 50))
    forget(folder, read_tombstones(folder), through=100)
    assert read_tombstones(folder) == Tombstones()


@pytest.mark.parametrize(
    ("path", "local"),
    [("data/archive", True), ("/lake", True), ("file:///lake", True), ("s3a://bucket/a", False), ("hdfs://n/a", False)],
)
def test_which_paths_are_of_this_machine(path: str, local: bool) -> None:
    assert is_local(path) is local
    assert str(local_path("file:///lake/50%25")) == "/lake/50%"
