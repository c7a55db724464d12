"""Archives of the previous format become tables, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from aviso_server.errors import PipelineError
from aviso_server.lake.files import Covered
from aviso_server.lake.previous import Migrated, migrate, previous_watermarks, refuse_previous
from aviso_server.lake.remove import Removed
from aviso_server.lake.schema import FileShape
from aviso_server.lake.table import Table, Tables
from aviso_server.model.batch import columns_of
from tests.lake.scene import FLOOD, event_type, ranges, sequences, stored

TEXT = event_type(severity={"type": "StringHandler", "required": False})


def old_file(
    root: Path, first: int, last: int, missing: set[int] | None = None, columns: Any = FLOOD, folder: str = "flood"
) -> Path:
    """A file as the previous version wrote it: its name said what it covers."""
    shape = FileShape("flood", columns_of(columns))
    numbers = [number for number in range(first, last + 1) if number not in (missing or set())]
    table = pa.Table.from_batches([shape.batch(stored(numbers))] if numbers else [], shape.schema).drop_columns("bbox")
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{first:020d}-{last:020d}.parquet"
    pq.write_table(table, path, compression="zstd")
    return path


def note(root: Path, name: str, content: bytes = b"") -> None:
    path = root / "flood" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def run(root: Path) -> dict[str, Migrated]:
    return dict(migrate(Tables(str(root))))


def previous(root: Path) -> Path:
    """Everything that the previous format knew."""
    old_file(root, 1, 10, {2})
    old_file(root, 11, 20)
    old_file(root, 1, 20, {2, 5})  # merged: it hides its parts
    old_file(root, 21, 30, {24, 25}, TEXT)
    old_file(root, 31, 40, {39, 40})
    note(root, "_tombstones/deleted-00000000000000000012")
    note(root, "_tombstones/deleted-00000000000000000045")
    note(root, "_tombstones/wiped-00000000000000000003")
    note(root, "_absences/deleted-00000000000000000024")
    note(root, "_absences/overtaken-00000000000000000039-00000000000000000040")
    note(root, "_absences/record.json", b'{"wiped_through":1,"deleted":[[5,5]],"overtaken":[[25,25]]}')
    note(root, "_status.json", b"{}")
    note(root, "_draft-job-1.parquet", b"half")
    return root


LEFT = [number for number in range(4, 41) if number not in (5, 12, 24, 25, 39, 40)]


def test_a_table_has_what_a_replay_gave(tmp_path: Path) -> None:
    previous(tmp_path)
    assert previous_watermarks(str(tmp_path)) == {"flood": 40}
    assert run(tmp_path) == {"flood": Migrated(40, len(LEFT), 3, Removed(0, (45,)))}
    assert sequences(tmp_path) == LEFT
    assert ranges(tmp_path) == [(1, 20), (21, 30), (31, 40)]
    table = Table(str(tmp_path), "flood")
    assert [table.covered(each) for each in table.snapshot().files] == [
        Covered(1, 20, deleted=((5, 5), (12, 12)), wiped=((1, 3),)),
        Covered(21, 30, deleted=((24, 24),), overtaken=((25, 25),)),
        Covered(31, 40, overtaken=((39, 40),)),
    ]
    rows = DeltaTable(table.folder).to_pyarrow_table().sort_by("sequence")
    assert rows["severity__string"].to_pylist()[LEFT.index(21)] == "1"
    assert rows["severity"].to_pylist()[LEFT.index(31)] == 31 % 7 + 1
    assert {each.name for each in (tmp_path / "flood").iterdir()} == {"_delta_log", *table.snapshot().names}
    assert run(tmp_path) == {}


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    previous(tmp_path)
    monkeypatch.setattr("aviso_server.lake.previous._MOST_FILES", 1)

    class Killed(BaseException):
        pass

    for limit in (20, 30, 40):

        def told(stream: str, done: int, last: int, limit: int = limit) -> None:
            if done == limit:
                raise Killed

        with pytest.raises(Killed):
            list(migrate(Tables(str(tmp_path)), told))
        assert Table(str(tmp_path), "flood").snapshot().watermark == limit
        with pytest.raises(PipelineError, match="has the format of an earlier version: run 'aviso-server pipeline mig"):
            refuse_previous(str(tmp_path))
    assert run(tmp_path)["flood"].last == 40
    assert sequences(tmp_path) == LEFT
    refuse_previous(str(tmp_path))


def test_one_who_is_killed_before_it_has_noted_early_deletes_hears_of_them_again(tmp_path: Path) -> None:
    previous(tmp_path)
    stream, first = next(migrate(Tables(str(tmp_path))))
    assert run(tmp_path) == {stream: first} == {"flood": Migrated(40, len(LEFT), 3, Removed(0, (45,)))}


def test_a_hole_stays_a_hole(tmp_path: Path) -> None:
    old_file(tmp_path, 1, 10)
    old_file(tmp_path, 21, 30)
    run(tmp_path)
    snapshot = Table(str(tmp_path), "flood").snapshot()
    assert (snapshot.missing, snapshot.gapless, snapshot.watermark) == ([(11, 20)], 10, 30)


def test_a_file_that_cannot_be_read_stops_it_and_nothing_is_removed(tmp_path: Path) -> None:
    old_file(tmp_path, 1, 10)
    path = old_file(tmp_path, 11, 20)
    path.write_bytes(b"torn")
    with pytest.raises(PipelineError, match=r"11-0*20\.parquet cannot be read"):
        run(tmp_path)
    assert len(list((tmp_path / "flood").glob("0*.parquet"))) == 2


def test_streams_with_odd_names_keep_them(tmp_path: Path) -> None:
    old_file(tmp_path, 1, 3, folder="a%20b")
    assert list(run(tmp_path)) == ["a b"]
    assert Tables(str(tmp_path)).streams() == ["a b"]
    assert not (tmp_path / "a%20b").exists()


def test_what_is_in_the_new_format_is_left_alone(tmp_path: Path) -> None:
    refuse_previous(str(tmp_path))
    assert run(tmp_path) == {}
    assert previous_watermarks(str(tmp_path / "nowhere")) == {}
