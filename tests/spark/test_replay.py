"""Cold replay as a whole: in order, bounded, without what was deleted, and gone when nobody wants it any more."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import Compactor
from aviso_server.lake.remove import Removed, delete, wipe
from aviso_server.lake.table import Table, Tables
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.spark.flight import Selection
from aviso_server.spark.replay import ColdReplay, Scanner, Turns
from tests.model.event_types import event_type
from tests.spark.stored import FIRST_TIME, SECOND, never, numbered, read, rows_of, store, wanted_rows

KIND = event_type("flood", {"region": "StringHandler", "step": "IntHandler"}, "floods", ["region"])
EVERYTHING = KIND.compile({}, "replay")
ROWS = 30_000
PAYLOAD = "x" * 2_000


def wide(root: Path, rows: int = ROWS, file_rows: int = 10_000) -> list[int]:
    """A stream with large notifications, made column by column; returns the steps."""
    steps = np.random.default_rng(5).integers(0, 2_000, rows)
    identifiers = [f'{{"region":"r{step % 7}","step":"{step}"}}'.encode() for step in steps.tolist()]
    every = [
        Notification(
            place, FIRST_TIME + place * SECOND, f"floods.r{step % 7}", identifier, f'"{PAYLOAD}{place}"'.encode()
        )
        for place, (step, identifier) in enumerate(zip(steps.tolist(), identifiers, strict=True), start=1)
    ]
    for start in range(0, rows, file_rows):
        store(root, KIND, every[start : start + file_rows], group_rows=5_000)
    return steps.tolist()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("wide")
    return root, wide(root)


def small(root: Path, rows: int = 300, files: int = 3) -> list[Notification]:
    """A stream with a few files of a few notifications."""
    drafts = [KIND.check({"region": "north" if place % 2 else "south", "step": place}, place) for place in range(rows)]
    every = numbered(drafts)
    size = rows // files
    for start in range(0, rows, size):
        store(root, KIND, every[start : start + size])
    return every


def sequences(batches: Iterable[pa.RecordBatch | pa.Table]) -> list[int]:
    return [sequence for batch in batches for sequence in batch.column("sequence").to_pylist()]


def test_everything_comes_in_order_and_in_parts(spark: SparkSession, archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(spark, Tables(str(archive[0])))
    batches = list(cold.read(Selection(EVERYTHING, 1, ROWS), never))
    assert sequences(batches) == list(range(1, ROWS + 1))
    assert max(batch.nbytes for batch in batches) < 32 * 1024 * 1024
    assert batches[-1].column("payload")[-1].as_py() == f'"{PAYLOAD}{ROWS}"'


@pytest.mark.parametrize(
    ("identifier", "passes"),
    [
        ({"step": {"eq": 77}}, lambda step: step == 77),  # here and there
        ({"step": {"lt": 400}}, lambda step: step < 400),  # a fifth
        ({"step": {"gte": 1}}, lambda step: step >= 1),  # nearly all
        ({"region": "r3"}, lambda step: step % 7 == 3),
        ({"step": {"gt": 5_000}}, lambda step: False),
    ],
    ids=["here and there", "a fifth", "nearly all", "a field", "none"],
)
@pytest.mark.parametrize("worth", [0, 10**12], ids=["picked by Spark", "by row group"])
def test_whatever_share_a_filter_takes(
    spark: SparkSession,
    archive: tuple[Path, list[int]],
    identifier: dict,
    passes,
    worth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aviso_server.spark.row_groups._WORTH_PICKING", worth)
    root, steps = archive
    wanted = KIND.compile(identifier, "replay")
    found = sequences(ColdReplay(spark, Tables(str(root))).read(Selection(wanted, 6_789, 23_456), never))
    assert found == [place for place in range(6_789, 23_457) if passes(steps[place - 1])]


def test_everything_comes_without_a_job(
    spark: SparkSession, archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr(Scanner, "rows", refuse)
    cold = ColdReplay(spark, Tables(str(archive[0])))
    assert sequences(cold.read(Selection(EVERYTHING, 7_000, 7_010), never)) == list(range(7_000, 7_011))


def test_what_was_found_and_cannot_be_read_is_an_error(
    spark: SparkSession, archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aviso_server.spark.row_groups._WORTH_PICKING", 0)
    found = Scanner.rows

    def forgetful(self: Scanner, *given: Any, **more: Any) -> pa.Table:
        rows = found(self, *given, **more)
        return rows.slice(1) if "payload" in rows.column_names else rows

    monkeypatch.setattr(Scanner, "rows", forgetful)
    cold = ColdReplay(spark, Tables(str(archive[0])))
    with pytest.raises(PipelineError, match="were found, and not all of them could be read"):
        list(cold.read(Selection(KIND.compile({"step": {"eq": 77}}, "replay"), 1, ROWS), never))


def test_warming_up_needs_no_archive(spark: SparkSession, archive: tuple[Path, list[int]], tmp_path: Path) -> None:
    ColdReplay(spark, Tables(str(archive[0]))).warm_up()
    ColdReplay(spark, Tables(str(tmp_path))).warm_up()


def test_several_at_a_time_each_make_progress(spark: SparkSession, archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(spark, Tables(str(archive[0])))
    together = [cold.read(Selection(EVERYTHING, 1, ROWS), never) for _ in range(4)]
    seen = [sequences([next(batches)]) for batches in together]  # all of them have begun, none has ended
    for batches, first in zip(together, seen, strict=True):
        assert first + sequences(batches) == list(range(1, ROWS + 1))


def active_jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_a_client_that_leaves_stops_the_reading(spark: SparkSession, archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(spark, Tables(str(archive[0])))
    batches = cold.read(Selection(EVERYTHING, 1, ROWS), never)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    began = time.monotonic()
    while active_jobs(spark):
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    assert read(cold, EVERYTHING, 1, 3)[-1][0] == 3  # the next one is served


def test_whoever_leaves_has_nothing_done_any_more(
    spark: SparkSession, archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()
    rows = Scanner.rows

    def on_its_way(self: Scanner, *given: Any, **more: Any) -> pa.Table:
        begun.set()
        assert cancelled.wait(60)
        time.sleep(0.5)  # the search begins after the client has left
        try:
            return rows(self, *given, **more)
        finally:
            ended.set()

    monkeypatch.setattr(Scanner, "rows", on_its_way)
    cold = ColdReplay(spark, Tables(str(archive[0])))
    north = Selection(KIND.compile({"region": "r3"}, "replay"), 1, ROWS)
    with ThreadPoolExecutor(1) as clients:
        client = clients.submit(lambda: list(cold.read(north, cancelled.is_set)))
        assert begun.wait(60)
        cancelled.set()
        assert client.result(60) == []
        assert ended.is_set()
    assert active_jobs(spark) == 0


def test_a_job_can_be_stopped_by_its_tag(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path)
    scanner = Scanner(spark)
    files = Table(str(tmp_path), "floods").snapshot().files
    ended = threading.Event()

    def scan() -> None:
        # as long as each row takes two seconds, the job takes minutes
        slowly = f.expr("reflect('java.lang.Thread', 'sleep', 2000L) is null and sequence > 0")
        with pytest.raises(Py4JJavaError), scanner.tagged("slow", "replay-1"):
            scanner.rows(files, {"sequence": "long"}, slowly, ["sequence"], pages=False)
        ended.set()

    thread = threading.Thread(target=scan)
    thread.start()
    while not active_jobs(spark):
        time.sleep(0.02)
    scanner.stop("another")
    assert not ended.wait(1)
    scanner.stop("slow")
    assert ended.wait(60)
    thread.join()


def test_a_reading_that_is_cancelled_ends(spark: SparkSession, archive: tuple[Path, list[int]]) -> None:
    cancelled = threading.Event()
    batches = ColdReplay(spark, Tables(str(archive[0]))).read(Selection(EVERYTHING, 1, ROWS), cancelled.is_set)
    next(batches)
    cancelled.set()
    assert list(batches) == []


def test_what_is_deleted_does_not_come_back(spark: SparkSession, tmp_path: Path) -> None:
    every = small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, table = ColdReplay(spark, tables), tables.of("floods")
    delete(table, [120, 200, 201, 300])
    wipe(table, 110)
    left = [each for each in every if each.sequence > 110 and each.sequence not in (120, 200, 201, 300)]
    assert read(cold, EVERYTHING) == wanted_rows(left, EVERYTHING)
    north = KIND.compile({"region": "north"}, "replay")
    assert read(cold, north) == wanted_rows(left, north)
    wipe(table, 400)
    assert read(cold, EVERYTHING) == []


def test_a_reader_has_its_snapshot_whatever_others_commit(
    spark: SparkSession, archive: tuple[Path, list[int]], tmp_path: Path
) -> None:
    root, steps = archive
    shutil.copytree(root / "floods", tmp_path / "floods")
    tables = Tables(str(tmp_path))
    cold, compactor = ColdReplay(spark, tables), Compactor(tables)
    wanted = KIND.compile({"step": {"lt": 400}}, "replay")
    expected = [place for place in range(1, ROWS + 1) if steps[place - 1] < 400]
    batches = cold.read(Selection(wanted, 1, ROWS), never)
    found = [next(batches)]
    for _ in compactor.run(everything=True):
        pass
    delete(tables.of("floods"), expected[-3:])
    assert compactor.vacuum(0) == 1, "the merged file that the delete has replaced; nobody reads it"
    found += list(batches)
    assert sequences(found) == expected
    assert compactor.vacuum(0) == 3, "nobody reads them any more"
    assert sequences(cold.read(Selection(wanted, 1, ROWS), never)) == expected[:-3]


def test_a_version_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    every = small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, table = ColdReplay(spark, tables), tables.of("floods")
    before = table.snapshot().version
    delete(table, [120, 200])
    wipe(table, 110)
    north = KIND.compile({"region": "north"}, "replay")
    for wanted in (EVERYTHING, north):
        then = [row for batch in cold.read(Selection(wanted, 1, 300, before), never) for row in rows_of([batch])]
        assert then == wanted_rows(every, wanted)
        assert cold.count(Selection(wanted, 1, 300, before), SECOND, Removed(), never).total == len(then)
    assert len(read(cold, EVERYTHING)) == 188
    assert cold.first_since("floods", 0, before) == 1
    assert cold.last_until("floods", 2**62, before) == 300


def test_a_file_that_is_missing_is_an_error_and_not_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, files = ColdReplay(spark, tables), tables.of("floods").snapshot().files
    Path(files[1].path).unlink()
    assert len(read(cold, EVERYTHING, 1, 100)) == 100
    with pytest.raises(PipelineError):
        read(cold, EVERYTHING)
    delta = DeltaTable(tables.of("floods").folder)
    delta.create_write_transaction([RemoveAction(files[1].name, True, 1)], "append", delta.schema())
    with pytest.raises(PipelineError, match="sequences 101 to 200 of stream 'floods' are in no file of its table"):
        read(cold, EVERYTHING)
    assert len(read(cold, EVERYTHING, 201, 300)) == 100
    with pytest.raises(PipelineError, match="sequences 301 to 310 of stream 'floods' are in no file of its table"):
        read(cold, EVERYTHING, 250, 310)


def test_who_begins_does_not_wait_in_line() -> None:
    done: list[str] = []
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as beginning, ThreadPoolExecutor(1) as working:
        working.submit(go_on.wait, 60)  # somebody else's work
        first, second = Turns(beginning, working), Turns(beginning, working)
        pieces = [(turns, name, number) for number in range(4) for turns, name in ((first, "a"), (second, "b"))]
        futures = [turns.submit(done.append, f"{name}{number}") for turns, name, number in pieces]
        wait(futures[:4], timeout=60)
        assert sorted(done) == ["a0", "a1", "b0", "b1"]
        go_on.set()
        wait(futures, timeout=60)
    assert done[4:] == ["a2", "b2", "a3", "b3"]


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path)
    broken = Path(Table(str(tmp_path), "floods").snapshot().files[1].path)
    broken.write_bytes(b"PAR1 this is no Parquet file PAR1")
    cold = ColdReplay(spark, Tables(str(tmp_path)))
    with pytest.raises(PipelineError, match=f"{broken.name} is not a file of the archive"):
        read(cold, EVERYTHING)


def test_damage_that_shows_only_in_the_rows_is_an_error_too(spark: SparkSession, tmp_path: Path) -> None:
    small(tmp_path)
    broken = Path(Table(str(tmp_path), "floods").snapshot().files[1].path)
    data = bytearray(broken.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    broken.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{broken.name} is not a file of the archive, or damaged"):
        read(ColdReplay(spark, Tables(str(tmp_path))), EVERYTHING)


def test_a_stream_that_was_never_archived_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    cold = ColdReplay(spark, Tables(str(tmp_path)))
    assert read(cold, EVERYTHING) == []
    assert (cold.first_since("floods", 0), cold.last_until("floods", 10**18)) == (1, 0)


def test_a_file_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    kind = GenericType("thing")
    stored = [Notification(place, 10**18, kind.name, b"{}", b"null") for place in (11, 12, 15)]
    store(tmp_path, kind, [], first=1, last=10)
    store(tmp_path, kind, stored, first=11, last=20)
    cold = ColdReplay(spark, Tables(str(tmp_path)))
    wanted = Filter(kind.name, kind.name, kind.name)
    assert read(cold, wanted) == wanted_rows(stored, wanted)
    assert read(cold, wanted, 12, 14) == wanted_rows(stored[1:2], wanted)
