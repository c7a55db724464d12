"""Cold replay as a whole: in order, bounded, without what was deleted, and gone when nobody wants it any more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import Compactor
from aviso_server.lake.remove import Removed, delete, wipe
from aviso_server.lake.scan import Scan, Share
from aviso_server.lake.table import Table, Tables
from aviso_server.model.event_type import GenericType
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.spark import cold_replay
from aviso_server.spark.cold_replay import ColdReplay, Turns
from aviso_server.spark.flight import Selection
from aviso_server.spark.tasks import run_tasks
from tests.harness.patience import PATIENCE
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


def test_everything_comes_in_order_and_in_parts(archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(Tables(str(archive[0])))
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
def test_whatever_share_a_filter_takes(archive: tuple[Path, list[int]], identifier: dict, passes) -> None:
    root, steps = archive
    wanted = KIND.compile(identifier, "replay")
    found = sequences(ColdReplay(Tables(str(root))).read(Selection(wanted, 6_789, 23_456), never))
    assert found == [place for place in range(6_789, 23_457) if passes(steps[place - 1])]


def test_reading_needs_no_java(archive: tuple[Path, list[int]], tmp_path: Path) -> None:
    code = f"""
import sys
from aviso_server.lake.table import Tables
from aviso_server.spark.flight import Selection
from aviso_server.spark.cold_replay import ColdReplay
from tests.spark.test_cold_replay import KIND, ROWS

wanted = Selection(KIND.compile({{"step": {{"lt": 100}}}}, "replay"), 1, ROWS)
print(sum(batch.num_rows for batch in ColdReplay(Tables({str(archive[0])!r})).read(wanted, lambda: False)))
"""
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) == sum(step < 100 for step in archive[1])


def test_several_at_a_time_each_make_progress(archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(Tables(str(archive[0])))
    together = [cold.read(Selection(EVERYTHING, 1, ROWS), never) for _ in range(4)]
    seen = [sequences([next(batches)]) for batches in together]  # all of them have begun, none has ended
    for batches, first in zip(together, seen, strict=True):
        assert first + sequences(batches) == list(range(1, ROWS + 1))


def test_a_client_that_leaves_stops_the_reading(archive: tuple[Path, list[int]]) -> None:
    cold = ColdReplay(Tables(str(archive[0])))
    batches = cold.read(Selection(EVERYTHING, 1, ROWS), never)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert read(cold, EVERYTHING, 1, 3)[-1][0] == 3  # the next one is served


def test_whoever_leaves_has_nothing_done_any_more(
    archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()
    pull = Scan.pull

    def on_its_way(self: Scan, stopped: Callable[[], bool]) -> pa.Table | None:
        begun.set()
        assert cancelled.wait(60)
        time.sleep(0.5)  # the scan begins after the client has left
        try:
            return pull(self, stopped)
        finally:
            ended.set()

    monkeypatch.setattr(Scan, "pull", on_its_way)
    cold = ColdReplay(Tables(str(archive[0])))
    north = Selection(KIND.compile({"region": "r3"}, "replay"), 1, ROWS)
    with ThreadPoolExecutor(1) as clients:
        client = clients.submit(lambda: list(cold.read(north, cancelled.is_set)))
        assert begun.wait(60)
        cancelled.set()
        assert client.result(60) == []
        assert ended.is_set()


def test_a_reading_that_is_cancelled_ends(archive: tuple[Path, list[int]]) -> None:
    cancelled = threading.Event()
    batches = ColdReplay(Tables(str(archive[0]))).read(Selection(EVERYTHING, 1, ROWS), cancelled.is_set)
    next(batches)
    cancelled.set()
    assert list(batches) == []


def test_what_is_deleted_does_not_come_back(tmp_path: Path) -> None:
    every = small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, table = ColdReplay(tables), tables.of("floods")
    delete(table, [120, 200, 201, 300])
    wipe(table, 110)
    left = [each for each in every if each.sequence > 110 and each.sequence not in (120, 200, 201, 300)]
    assert read(cold, EVERYTHING) == wanted_rows(left, EVERYTHING)
    north = KIND.compile({"region": "north"}, "replay")
    assert read(cold, north) == wanted_rows(left, north)
    wipe(table, 400)
    assert read(cold, EVERYTHING) == []


def test_a_reader_has_its_snapshot_whatever_others_commit(archive: tuple[Path, list[int]], tmp_path: Path) -> None:
    root, steps = archive
    shutil.copytree(root / "floods", tmp_path / "floods")
    tables = Tables(str(tmp_path))
    cold, compactor = ColdReplay(tables), Compactor(tables)
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


def test_a_version_is_read_as_it_was(tmp_path: Path) -> None:
    every = small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, table = ColdReplay(tables), tables.of("floods")
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


def test_a_file_that_is_missing_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    small(tmp_path)
    tables = Tables(str(tmp_path))
    cold, files = ColdReplay(tables), tables.of("floods").snapshot().files
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


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    small(tmp_path)
    broken = Path(Table(str(tmp_path), "floods").snapshot().files[1].path)
    broken.write_bytes(b"PAR1 this is no Parquet file PAR1")
    cold = ColdReplay(Tables(str(tmp_path)))
    with pytest.raises(PipelineError, match=f"{broken.name} is not a file of the archive"):
        read(cold, EVERYTHING)


def test_damage_that_shows_only_in_the_rows_is_an_error_too(tmp_path: Path) -> None:
    small(tmp_path)
    broken = Path(Table(str(tmp_path), "floods").snapshot().files[1].path)
    data = bytearray(broken.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    broken.write_bytes(data)
    with pytest.raises(PipelineError, match=f"{broken.name} is not a file of the archive, or damaged"):
        read(ColdReplay(Tables(str(tmp_path))), EVERYTHING)


def test_a_stream_that_was_never_archived_is_empty(tmp_path: Path) -> None:
    cold = ColdReplay(Tables(str(tmp_path)))
    assert read(cold, EVERYTHING) == []
    assert (cold.first_since("floods", 0), cold.last_until("floods", 10**18)) == (1, 0)


def test_a_file_without_rows(tmp_path: Path) -> None:
    kind = GenericType("thing")
    stored = [Notification(place, 10**18, kind.name, b"{}", b"null") for place in (11, 12, 15)]
    store(tmp_path, kind, [], first=1, last=10)
    store(tmp_path, kind, stored, first=11, last=20)
    cold = ColdReplay(Tables(str(tmp_path)))
    wanted = Filter(kind.name, kind.name, kind.name)
    assert read(cold, wanted) == wanted_rows(stored, wanted)
    assert read(cold, wanted, 12, 14) == wanted_rows(stored[1:2], wanted)


# On a cluster ---------------------------------------------------------------------------------------------------------


def test_tasks_of_spark_bring_the_same(
    spark: SparkSession, archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_replay, "_FEW_ROWS", 10_000)
    monkeypatch.setattr(cold_replay, "_LOT", 2)
    monkeypatch.setattr("aviso_server.lake.scan._FIRST_ROWS", 1_000)
    asked: list[int] = []

    def counted(session: SparkSession, work: Any, items: Sequence[Any]) -> list[Any]:
        asked.append(len(items))
        return run_tasks(session, work, items)

    monkeypatch.setattr(cold_replay, "run_tasks", counted)
    root, steps = archive
    cold = ColdReplay(Tables(str(root)), lambda: spark)
    wanted = KIND.compile({"step": {"lt": 400}}, "replay")
    expected = [place for place in range(5, 29_001) if steps[place - 1] < 400]
    assert sequences(cold.read(Selection(wanted, 5, 29_000), never)) == expected
    assert sorted(asked) == [1, 2], "the rest of the first file, and the others"
    assert cold.count(Selection(wanted, 5, 29_000), SECOND, Removed(), never).total == len(expected)
    asked.clear()
    assert len(sequences(cold.read(Selection(wanted, 5, 9_000), never))) > 0
    assert sequences(cold.read(Selection(EVERYTHING, 1, ROWS), never)) == list(range(1, ROWS + 1))
    assert asked == [], "few rows, and everything, are read here"


def test_tasks_end_when_nobody_waits_for_them(
    spark: SparkSession, archive: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_replay, "_FEW_ROWS", 0)
    monkeypatch.setattr("aviso_server.lake.scan._FIRST_ROWS", 1_000)
    monkeypatch.setattr(cold_replay, "scan_share", sleep_long)
    cancelled = threading.Event()
    cold = ColdReplay(Tables(str(archive[0])), lambda: spark)
    active = spark.sparkContext.statusTracker().getActiveJobsIds
    wanted = Selection(KIND.compile({"region": "r3"}, "replay"), 1, ROWS)
    with ThreadPoolExecutor(1) as clients:
        client = clients.submit(lambda: sequences(cold.read(wanted, cancelled.is_set)))
        began = time.monotonic()
        while not active():
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.02)
        cancelled.set()
        assert max(client.result(PATIENCE)) <= 1_000
    assert active() == []


def sleep_long(share: Share) -> Iterator[tuple[int, bytes]]:
    time.sleep(60)
    yield 0, b""
