"""The archive job in a real Spark session, against real servers."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.keeper import Keeper
from aviso_server.pipeline.archive.layout import listing, stream_folder, streams
from aviso_server.pipeline.archive.source import ArchiveTask
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.tombstones import mark_deleted
from tests.harness import Server
from tests.pipeline.archive.keeping import archived, in_log
from tests.pipeline.scene import CONFIGURATION, publish_floods, publish_tides

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A storage that only Spark can reach."""
    folder = tmp_path_factory.mktemp("lake")
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.lake.link./lake", folder.as_uri())
    return "viewfs://lake/lake"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path / "server") as running:
        yield running


def archive(server: Server, root: Path | str, work: Path, **task: Any) -> Board:
    """Archive what the server holds now, as somebody who was just started; how the archive looks then."""
    keeper = Keeper(str(root), work, "local[2]")
    keeper.open()  # the session is there already
    keeper.archive_once(ArchiveTask(url=server.url, root=str(root), offsets={}, **task))
    return keeper.board


@pytest.mark.usefixtures("spark")
def test_files_hold_every_notification_as_it_was_in_typed_columns(server: Server, tmp_path: Path) -> None:
    publish_floods(server, 1, 120)
    publish_tides(server, 1, 30)
    server.client.publish("anything", {"place": "Zürich ☃", "n": 1}, {"text": "\x00\u2028"})
    board = archive(server, tmp_path / "archive", tmp_path / "work", rows_per_file=50)
    for event_type, stream in (("flood", "floods"), ("tide", "tide"), ("anything", "anything")):
        assert archived(board.root, stream).equals(in_log(server, event_type))
    assert list(streams(board.root)) == ["anything", "floods", "tide"]
    ranges = [(each.first, each.last) for each in listing(stream_folder(board.root, "floods"))]
    assert ranges == [(1, 40), (41, 80), (81, 120)]
    table = pq.read_table(listing(stream_folder(board.root, "floods"))[0].path)
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "sequence": "int64",
        "time_ns": "int64",
        "time": "timestamp[us, tz=UTC]",
        "event_type": "string",
        "topic": "string",
        "region": "string",
        "identifier_time": "string",
        "date": "string",
        "severity": "int64",
        "depth": "double",
        "polygon": "binary",
        "box_min_lat": "float",
        "box_min_lon": "float",
        "box_max_lat": "float",
        "box_max_lon": "float",
        "identifier": "string",
        "payload": "string",
    }
    assert table.column("severity").to_pylist()[:3] == [2, 3, 4]
    assert table.column("depth").to_pylist()[:3] == [0.25, 0.5, 0.75]
    assert set(table.column("event_type").to_pylist()) == {"flood"}
    assert {name: each.last for name, each in board.streams().items()} == {"anything": 1, "floods": 120, "tide": 30}


@pytest.mark.usefixtures("spark")
def test_a_new_field_a_changed_one_and_a_new_stream_are_taken_up(server: Server, tmp_path: Path) -> None:
    publish_tides(server, 1, 5)
    root, work = tmp_path / "archive", tmp_path / "work"
    archive(server, root, work)
    changed = copy.deepcopy(CONFIGURATION)
    fields = changed["notification_schema"]["tide"]["identifier"]
    fields["severity"] = {"type": "IntHandler", "required": False}
    fields["height"] = {"type": "FloatHandler", "required": False}
    del fields["version"]
    server.stop()
    with Server(changed, tmp_path / "server") as later:
        later.client.publish("tide", {"port": "oslo", "severity": 3, "height": 1.5}, 6)
        later.client.publish("brand-new", {"a": "b"}, 1)
        board = archive(later, root, work)
        assert archived(board.root, "tide").equals(in_log(later, "tide"))
        assert archived(board.root, "brand-new").equals(in_log(later, "brand-new"))
    old, new = (pq.read_table(each.path) for each in listing(stream_folder(board.root, "tide")))
    assert (old.schema.field("severity").type, new.schema.field("severity").type) == (pa.string(), pa.int64())
    assert (new.column("height").to_pylist(), "version" in new.schema.names) == ([1.5], False)


@pytest.mark.usefixtures("spark")
def test_what_left_the_log_unarchived_is_a_gap_that_is_told_and_passed(server: Server, tmp_path: Path) -> None:
    root, work = tmp_path / "archive", tmp_path / "work"
    publish_tides(server, 1, 3)
    archive(server, root, work)
    publish_tides(server, 4, 8)
    server.client.wipe_all()
    publish_tides(server, 9, 10)
    server.client.delete("/api/v1/admin/notification/tide@10")
    board = archive(server, root, work)
    rows = archived(board.root, "tide")
    assert rows.column("sequence").to_pylist() == [1, 2, 3, 9]
    assert [(each.first, each.last) for each in listing(stream_folder(board.root, "tide"))] == [(1, 3), (4, 10)]
    told = board.streams()["tide"].last_error or ""
    assert told.startswith("sequences 4 to 8 were not in the log any more")
    later = Board(str(root), LOCAL)
    later.read()
    assert later.streams()["tide"].last_error == told, "a restart forgets nothing"


@pytest.mark.usefixtures("spark")
def test_all_that_is_left_of_a_range_may_be_nothing(server: Server, tmp_path: Path) -> None:
    publish_tides(server, 1, 3)
    server.client.wipe_all()
    board = archive(server, tmp_path / "archive", tmp_path / "work")
    (file,) = listing(stream_folder(board.root, "tide"))
    assert (file.first, file.last, pq.read_metadata(file.path).num_rows) == (1, 3, 0)


@pytest.mark.usefixtures("spark")
def test_the_archive_of_another_log_is_not_continued(server: Server, tmp_path: Path) -> None:
    root, work = tmp_path / "archive", tmp_path / "work"
    publish_tides(server, 1, 5)
    archive(server, root, work)
    with Server(CONFIGURATION, tmp_path / "other") as other:
        publish_tides(other, 1, 2)
        board = archive(other, root, work)
    assert board.streams()["tide"].last == 5
    assert "the log ends at sequence 2, the archive at 5" in (board.streams()["tide"].last_error or "")
    assert archived(board.root, "tide").equals(in_log(server, "tide"))


@pytest.mark.usefixtures("spark")
def test_a_server_that_is_away_or_something_else_is_named(tmp_path: Path, server: Server) -> None:
    url = server.url
    server.stop()
    keeper = Keeper(str(tmp_path / "archive"), tmp_path / "work", "local[2]")
    keeper.open()
    with pytest.raises(PipelineError, match=f"no server answers at {url}"):
        keeper.archive_once(ArchiveTask(url=url, root=str(tmp_path / "archive"), offsets={}))


def test_an_archive_may_lie_where_only_spark_gets(lake: str, server: Server, tmp_path: Path) -> None:
    root = f"{lake}/archive"
    publish_floods(server, 1, 60)
    board = archive(server, root, tmp_path / "work", rows_per_file=20)
    publish_floods(server, 61, 90)
    board = archive(server, root, tmp_path / "work", rows_per_file=20)
    folder = stream_folder(root, "floods")
    files = listing(folder, board.storage)
    assert [(each.first, each.last) for each in files] == [(1, 20), (21, 40), (41, 60), (61, 75), (76, 90)]
    mark_deleted(folder, 33, board.storage)
    keeper = Keeper(root, tmp_path / "work", "local[2]")
    session = keeper.open()
    for _ in keeper.compactor().run(everything=True):
        pass
    (file,) = listing(folder, board.storage)
    assert (file.first, file.last) == (1, 90)
    rows = session.read.parquet(file.path).select("sequence", "identifier", "payload").collect()
    assert [row.sequence for row in rows] == [number for number in range(1, 91) if number != 33]
    log = {row["sequence"]: row for row in in_log(server, "flood").to_pylist()}
    assert all(row.identifier == log[row.sequence]["identifier"] for row in rows)
    assert json.loads(rows[-1].payload) == {"n": 90}
