"""Tables: commits that fit or are refused, snapshots, what is missing, and how outside readers see them."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from aviso_server.errors import PipelineError
from aviso_server.lake.files import rewrite
from aviso_server.lake.table import Conflict, Snapshot, Table, Tables, VersionGone, stream_folder, streams
from tests.lake.scene import made, ranges, rows_in, sequences, write


@pytest.mark.parametrize("stream", ["mars", "MARS", "a/b", "Zürich", "50%", "_hidden", ".hidden", "..", "a b", "a~b"])
def test_every_stream_has_a_table_of_its_own_and_is_found_again(tmp_path: Path, stream: str) -> None:
    table = Table(str(tmp_path), stream)
    table.commit(made(table, 1, 3), watermark=3, after=0)
    assert list(streams(str(tmp_path))) == [stream]
    folder = Path(stream_folder(str(tmp_path), stream))
    assert folder.parent == tmp_path
    assert folder.name[0] not in "._"
    assert ranges(tmp_path, stream) == [(1, 3)]
    assert DeltaTable(folder).to_pyarrow_table()["sequence"].to_pylist() == [1, 2, 3]


def test_a_stream_without_a_table_is_empty(tmp_path: Path) -> None:
    assert Table(str(tmp_path), "flood").snapshot() == Snapshot()
    assert Tables(str(tmp_path / "nowhere")).streams() == []
    (tmp_path / "_lock").touch()
    (tmp_path / "folder").mkdir()
    assert Tables(str(tmp_path)).streams() == []


def test_a_commit_brings_files_and_watermark_together(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 40)
    write(tmp_path, 41, 60, missing={55, 60})
    snapshot = table.snapshot()
    assert (snapshot.watermark, snapshot.gapless, snapshot.missing) == (60, 60, [])
    assert [(each.first, each.last, each.rows) for each in snapshot.files] == [(1, 40, 40), (41, 60, 18)]
    assert DeltaTable(table.folder).transaction_version("aviso.watermark") == 60


def test_a_second_writer_is_refused_and_not_merged(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    one, other = Table(str(tmp_path), "flood"), Table(str(tmp_path), "flood")
    first, second = made(one, 11, 20), made(other, 11, 25)
    one.snapshot(), other.snapshot()
    one.commit(first, watermark=20, after=10)
    with pytest.raises(Conflict, match="archived up to 20 already: another server or command archives it too"):
        other.commit(second, watermark=25, after=10)
    assert sequences(tmp_path) == list(range(1, 21))


def test_of_many_writers_at_once_one_wins_each_time(tmp_path: Path) -> None:
    won: list[int] = []

    def work(number: int) -> None:
        table = Table(str(tmp_path), "flood")
        for first in range(1, 51, 10):
            while (now := table.snapshot().watermark) < first:
                try:
                    table.commit(made(table, now + 1, now + 10), watermark=now + 10, after=now)
                    won.append(number)
                except Conflict:
                    pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 5
    assert ranges(tmp_path) == [(1, 10), (11, 20), (21, 30), (31, 40), (41, 50)]


def test_a_file_can_be_replaced_once(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    (file,) = table.snapshot().files
    table.commit(made(table, 1, 10, {3}), [file])
    with pytest.raises(Conflict, match="another writer has replaced"):
        table.commit(made(table, 1, 10, {4}), [file])
    assert 3 not in sequences(tmp_path)
    assert table.snapshot().watermark == 10, "nothing but an archiver moves it"


def remove(table: Table, place: int) -> None:
    """Remove a file as somebody else would, by a commit of their own."""
    delta = DeltaTable(table.folder)
    name = table.snapshot().files[place].name
    delta.create_write_transaction([RemoveAction(name, True, 1)], "append", delta.schema())


@pytest.mark.parametrize(("place", "missing", "gapless"), [(0, (1, 10), 0), (1, (11, 20), 10), (2, (21, 30), 20)])
def test_a_file_that_somebody_removed_ends_the_gapless_part(
    tmp_path: Path, place: int, missing: tuple[int, int], gapless: int
) -> None:
    for first in (1, 11, 21):
        table = write(tmp_path, first, first + 9, missing={first + 4})
    remove(table, place)
    snapshot = table.snapshot()
    assert (snapshot.watermark, snapshot.gapless, snapshot.missing) == (30, gapless, [missing])
    for low, high in ((1, 30), missing, (missing[0], missing[0])):
        with pytest.raises(PipelineError, match="of stream 'flood' are in no file of its table"):
            snapshot.check_covered("flood", low, high)
    with pytest.raises(PipelineError, match="sequences 31 to 40"):
        snapshot.check_covered("flood", 31, 40)


def test_absent_rows_at_the_edges_of_files_are_no_gap(tmp_path: Path) -> None:
    write(tmp_path, 1, 10, missing={1, 2, 9, 10})
    write(tmp_path, 11, 20, missing=set(range(11, 21)))
    table = write(tmp_path, 21, 30, missing={21, 30})
    snapshot = Table(str(tmp_path), "flood").snapshot()
    assert (snapshot.missing, snapshot.gapless) == ([], 30)
    assert [(each.first, each.last, each.rows) for each in snapshot.files] == [(1, 10, 6), (11, 20, 0), (21, 30, 8)]
    table.snapshot().check_covered("flood", 1, 30)


def test_a_commit_that_was_rolled_back_takes_its_watermark_with_it(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    write(tmp_path, 11, 20)
    (Path(table.folder) / "_delta_log" / f"{1:020d}.json").unlink()
    assert Table(str(tmp_path), "flood").snapshot().watermark == 10
    assert table.snapshot().watermark == 10, "who knew the commit notices too"
    table.commit(made(table, 11, 30), watermark=30, after=10)
    assert sequences(tmp_path) == list(range(1, 31))


def test_a_table_that_began_anew_is_another_table(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    assert table.snapshot().watermark == 10
    shutil.rmtree(table.folder)
    assert table.snapshot() == Snapshot()
    write(tmp_path, 1, 5)
    assert table.snapshot().watermark == 5


def test_a_table_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10)
    log = Path(table.folder) / "_delta_log" / f"{1:020d}.json"
    log.write_text('{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["never-heard-of"],'
                   '"writerFeatures":["never-heard-of"]}}\n')  # fmt: skip
    later = Table(str(tmp_path), "flood")
    with pytest.raises(PipelineError, match="the table of stream 'flood' cannot be used"):
        later.commit(made(table, 11, 20), watermark=20, after=10)
    with pytest.raises(PipelineError, match="has a '%' in it, which delta-rs cannot open"):
        Table(str(tmp_path / "50%"), "flood").snapshot()


def test_outside_readers_see_what_we_see_during_merges_and_deletes(tmp_path: Path) -> None:
    from aviso_server.lake.compact import Compactor
    from aviso_server.lake.remove import delete, wipe

    def agree() -> None:
        own = rows_in(tmp_path, "flood").column("sequence").to_pylist()
        delta = DeltaTable(table.folder)
        dataset = delta.to_pyarrow_dataset()
        assert sorted(dataset.to_table(columns=["sequence"])["sequence"].to_pylist()) == own
        assert duckdb.connect().execute("select count(*) from dataset").fetchone() == (len(own),)
        low = delta.to_pyarrow_table(filters=[("sequence", ">", 20), ("severity", "=", 3)])
        assert set(low["sequence"].to_pylist()) <= set(own)

    for first in range(1, 51, 10):
        table = write(tmp_path, first, first + 9)
        agree()
    delete(table, [7, 8, 31])
    agree()
    for _ in Compactor(Tables(str(tmp_path)), target=30).run(everything=True):
        agree()
    wipe(table, 25)
    agree()
    assert sequences(tmp_path) == [number for number in range(26, 51) if number != 31]


def test_time_is_skipped_by_in_the_statistics(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    table = write(tmp_path, 11, 20)
    facts = pa.table(DeltaTable(table.folder).get_add_actions(flatten=True)).sort_by("min.sequence")
    assert facts["num_records"].to_pylist() == [10, 10]
    assert facts["min.time_ns"].to_pylist() == [1_000_007, 11 * 1_000_007]
    rows = DeltaTable(table.folder).to_pyarrow_table(columns=["sequence", "time"]).sort_by("sequence")
    assert all(low <= time <= high for time, low, high in zip(
        rows["time"].to_pylist(), [facts["min.time"][0].as_py()] * 10 + [facts["min.time"][1].as_py()] * 10,
        [facts["max.time"][0].as_py()] * 10 + [facts["max.time"][1].as_py()] * 10, strict=True))  # fmt: skip


def moment() -> int:
    """Now, apart from all commits: they are known to the millisecond."""
    time.sleep(0.01)
    now = time.time_ns()
    time.sleep(0.01)
    return now


def test_a_table_as_it_was_at_a_time(tmp_path: Path) -> None:
    from aviso_server.lake.compact import Compactor
    from aviso_server.lake.remove import delete

    beginning = moment()
    table = write(tmp_path, 1, 10)
    first = moment()
    write(tmp_path, 11, 20)
    delete(table, [7])
    second = moment()
    tables = Tables(str(tmp_path))
    table = tables.of("flood")
    for _ in Compactor(tables).run(everything=True):
        pass
    with pytest.raises(VersionGone, match="the oldest version of its table that is kept is of 20"):
        table.version_at(beginning)
    with pytest.raises(VersionGone, match="nothing of stream 'tide' was archived then"):
        tables.of("tide").version_at(second)
    with table.held(table.version_at(first)) as then:
        assert (then.watermark, [(each.first, each.last, each.rows) for each in then.files]) == (10, [(1, 10, 10)])
        assert table.vacuum(0) > 0, "all that nobody reads"
        assert Path(then.files[0].path).exists(), "somebody reads it"
    with table.held(table.version_at(first)):
        pass
    with pytest.raises(VersionGone, match="files of that time are removed"):
        table.version_at(second)
    table.vacuum(0)
    with pytest.raises(VersionGone, match="files of that time are removed"):
        table.version_at(first)
    with table.held(table.version_at(moment())) as now:
        assert now == table.snapshot()
        assert [each.rows for each in now.files] == [19]


def test_a_footer_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, 11, 20, missing={19, 20})
    table = Table(str(tmp_path), "flood")
    file = Path(write(tmp_path, 21, 30).snapshot().files[1].path)
    away = file.rename(tmp_path / "away")
    assert table.snapshot().missing == [(19, 20)], "what is not known to be covered is not"
    away.rename(file)
    assert table.snapshot().missing == []


def test_a_file_that_takes_the_place_of_another_covers_what_its_footer_says(tmp_path: Path) -> None:
    table = write(tmp_path, 1, 10, missing={9, 10})
    (file,) = table.snapshot().files
    narrow = msgspec.structs.replace(file, last=8)  # as long as the footer could not be read
    table.commit([rewrite(table.folder, [narrow])], [file])
    assert (ranges(tmp_path), table.snapshot().gapless) == ([(1, 10)], 10)
