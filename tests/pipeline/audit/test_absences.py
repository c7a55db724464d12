"""Why sequences are missing from an archive: remembered when the marks of deletes are gone."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from aviso_server.pipeline.archive.absences import Absences, gather, note_deleted, note_overtaken, read_absences
from aviso_server.pipeline.archive.compaction import Compactor
from aviso_server.pipeline.archive.layout import stream_folder, streams
from aviso_server.pipeline.archive.ranges import clipped, joined_ranges, length, without_ranges
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.tombstones import mark_deleted, mark_wiped, read_tombstones
from aviso_server.pipeline.audit.evidence import Removals, gather_evidence
from tests.pipeline.archive.files import write

RANGES = some.lists(some.tuples(some.integers(1, 60), some.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))))


def numbers(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_sequences(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert numbers(joined_ranges(one)) == numbers(one)
    assert numbers(without_ranges(one, other)) == numbers(one) - numbers(other)
    assert numbers(clipped(one, 10, 20)) == numbers(one) & set(range(10, 21))
    assert length(joined_ranges(one)) == len(numbers(one))


def compact(root: Path) -> None:
    for _ in Compactor(Board(str(root), LOCAL), root / "_work").run():
        pass


def test_compaction_forgets_marks_and_remembers_what_they_said(tmp_path: Path) -> None:
    write(tmp_path, 1, 30)
    folder = stream_folder(str(tmp_path), "flood")
    for sequence in (12, 13, 20):
        mark_deleted(folder, sequence)
    compact(tmp_path)
    assert read_tombstones(folder).deleted == ()
    assert read_absences(folder) == Absences(0, ((12, 13), (20, 20)))
    mark_wiped(folder, 15)
    compact(tmp_path)
    assert read_absences(folder) == Absences(15, ((20, 20),))


def test_notes_are_seen_at_once_and_gathered_later(tmp_path: Path) -> None:
    write(tmp_path, 1, 30)
    folder = stream_folder(str(tmp_path), "flood")
    note_deleted(folder, 7)
    note_overtaken(folder, 1, 4)
    note_overtaken(folder, 5, 6)
    expected = Absences(0, ((7, 7),), ((1, 6),))
    assert read_absences(folder) == expected
    gather(folder, 0, [])
    assert read_absences(folder) == expected
    assert sorted(path.name for path in (Path(folder) / "_absences").iterdir()) == ["record.json"]


def test_evidence_is_everything_on_its_way(tmp_path: Path) -> None:
    folder = stream_folder(str(tmp_path), "flood")
    mark_deleted(folder, 8)
    note_deleted(folder, 9)
    note_overtaken(folder, 20, 29)
    known = gather_evidence(str(tmp_path), "flood", LOCAL, Removals(3, (7,)), trimmed=5, last=100)
    assert known.unexplained([(1, 12), (19, 30)], in_log=True) == [(6, 6), (10, 12), (19, 30)]
    assert known.unexplained([(1, 12), (19, 30)], in_log=False) == [(4, 6), (10, 12), (19, 19), (30, 30)]
    explained = known.explained([(1, 12)], in_log=True)
    assert (explained.wiped, explained.deleted, explained.retention) == (3, 3, 2)


def test_the_folders_of_audits_are_no_streams(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    (tmp_path / "_audit").mkdir()
    (tmp_path / "_audit" / "verdict.json").write_text("{}")
    assert list(streams(str(tmp_path))) == ["flood"]
