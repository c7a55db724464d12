"""Tables in an object store: as on a disk, also when the store is slow or refuses, and when writers are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import Compactor
from aviso_server.lake.remove import delete, wipe
from aviso_server.lake.storage import delta_options, list_folder, table_uri
from aviso_server.lake.table import Conflict, Table, Tables
from aviso_server.spark.archiver import ArchiveStatus
from tests.harness.broker import wait_until
from tests.harness.objects import BUCKET, FaultyWay, ObjectStore, environment, store_running
from tests.lake.scene import made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with store_running(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def way(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyWay]:
    """The way to the store; the environment leads there."""
    found = FaultyWay(store.port)
    for name, value in environment(found.url).items():
        monkeypatch.setenv(name, value)
    yield found
    found.close()


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}"


def tables(root: str) -> Tables:
    """As another process would open them."""
    return Tables(root)


def sequences(root: str) -> list[int]:
    table = tables(root).of("flood")
    snapshot = table.snapshot()
    assert not snapshot.missing
    found = DeltaTable(table_uri(table.folder), storage_options=delta_options(table.folder))
    rows: list[int] = sorted(found.to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())
    assert len(rows) == sum(each.rows for each in snapshot.files)
    return rows


def fill(root: str, first: int, last: int) -> Table:
    table = tables(root).of("flood")
    table.commit(made(table, first, last), watermark=last, after=first - 1)
    return table


def test_the_status_is_told_while_the_store_is_slow(way: FaultyWay, root: str) -> None:
    fill(root, 1, 10)
    status = ArchiveStatus(root)
    status.read()
    fill(root, 11, 20)
    way.delay, before = 3.0, way.asked
    looking = threading.Thread(target=status.refresh, args=("flood",))
    looking.start()
    wait_until(lambda: way.asked > before)
    assert status.streams()["flood"].last == 10
    assert looking.is_alive(), "nobody waits for the store"
    way.delay = 0.0
    looking.join()
    assert (status.streams()["flood"].last, status.watermark("flood")) == (20, 20)


def test_commits_deletes_merges_and_vacuum(way: FaultyWay, root: str) -> None:
    for first in (1, 11, 21):
        table = fill(root, first, first + 9)
    assert sequences(root) == list(range(1, 31))
    assert tables(root).streams() == ["flood"]
    assert delete(table, [7, 25]) == {7, 25}
    wipe(table, 3)
    every = tables(root)
    for _ in Compactor(every).run(everything=True):
        pass
    assert sequences(root) == [number for number in range(4, 31) if number not in (7, 25)]
    assert Compactor(every).vacuum(0) > 0
    (file,) = every.of("flood").snapshot().files
    listed = list_folder(every.of("flood").folder)
    assert [each.name for each in listed if not each.is_folder] == [file.name]
    assert list_folder(every.of("flood").folder.replace("s3:", "s3a:"))[0].path.startswith("s3a://")


def test_two_writers_at_once_are_not_merged(way: FaultyWay, root: str) -> None:
    way.delay = 0.01
    fill(root, 1, 10)
    refused: list[Exception] = []
    one, other = (tables(root).of("flood") for _ in range(2))
    files = [made(one, 11, 20), made(other, 11, 25)]

    def work(table: Table, place: int) -> None:
        try:
            table.commit(files[place], watermark=files[place][-1].last, after=10)
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=work, args=(table, place)) for place, table in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert sequences(root) in (list(range(1, 21)), list(range(1, 26)))


def test_a_store_that_is_slow_and_refuses_requests_loses_nothing(way: FaultyWay, root: str) -> None:
    way.delay, way.refuse_every = 0.02, 5
    for first in (1, 11, 21):
        table = fill(root, first, first + 9)
    delete(table, [15])
    way.delay, way.refuse_every = 0.0, 0
    assert way.refused > 2
    assert sequences(root) == [number for number in range(1, 31) if number != 15]


@pytest.mark.parametrize("work", ["archive", "compact", "delete"])
def test_a_commit_that_the_store_has_taken_keeps_its_files_when_the_answer_is_lost(
    way: FaultyWay, root: str, work: str
) -> None:
    fill(root, 1, 10)
    table = fill(root, 11, 20)
    files = made(table, 21, 30)
    way.lose_commits = 1
    if work == "archive":
        assert table.commit(files, watermark=30, after=20).watermark == 30
    elif work == "compact":
        list(Compactor(tables(root)).run(everything=True))
    else:
        assert delete(table, [7]) == {7}
    assert way.lose_commits == 0
    assert (
        sequences(root)
        == {
            "archive": list(range(1, 31)),
            "compact": list(range(1, 21)),
            "delete": [number for number in range(1, 21) if number != 7],
        }[work]
    )


KILLED = """
import os, sys, time
from aviso_server.lake import files
from aviso_server.lake.table import Tables
from tests.lake.scene import made
table = Tables(sys.argv[1]).of("flood")
create = files.create_file
def slowly(path):
    sink = create(path)
    sink.write(b"x" * 6_000_000)  # a part is on its way
    print("uploading", flush=True)
    time.sleep(60)
    return sink
files.create_file = slowly
table.commit(made(table, 11, 20), watermark=20, after=10)
"""


def test_a_writer_that_is_killed_in_the_middle_of_an_upload_leaves_nothing(
    way: FaultyWay, root: str, tmp_path: Path
) -> None:
    fill(root, 1, 10)
    place = Path(__file__).parents[2]
    paths = f"{place / 'src'}:{place}"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, root],
        env={**os.environ, **environment(way.url), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    ) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == b"uploading\n"
        working.send_signal(signal.SIGKILL)
    table = tables(root).of("flood")
    assert (table.snapshot().watermark, table.snapshot().missing) == (10, [])
    assert len([each for each in list_folder(table.folder) if not each.is_folder]) == 1
    fill(root, 11, 20)
    assert sequences(root) == list(range(1, 21))


def test_what_is_wrong_is_said_in_one_sentence(way: FaultyWay) -> None:
    table = tables("s3://no-such-bucket/x").of("flood")
    with pytest.raises((PipelineError, OSError), match=r"(?i)bucket"):
        made(table, 1, 3)
    with pytest.raises(PipelineError, match=r"archive\.path: 'gopher://x/y' cannot be reached; accepted: a folder"):
        list_folder("gopher://x/y")
