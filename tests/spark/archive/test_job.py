"""The archive job in a real Spark session, against real servers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from aviso_server.errors import PipelineError
from aviso_server.lake.table import Table, streams
from aviso_server.spark.archiver import Archiver, ArchiveSettings, ArchiveStatus
from tests.harness import Server
from tests.lake.scene import made, ranges
from tests.spark.archive.keeping import archived, in_log, until
from tests.spark.scene import CONFIGURATION, publish_floods, publish_tides


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path / "server") as running:
        yield running


def archive(server: Server, root: Path | str, work: Path, **task: Any) -> ArchiveStatus:
    """Archive what the server holds now, as somebody who was just started; how the archive looks then."""
    archiver = Archiver(str(root), work, "local[2]")
    archiver.open()  # the session is there already
    archiver.run_once(ArchiveSettings(url=server.url, **task))
    return archiver.status


@pytest.mark.usefixtures("spark")
def test_files_hold_every_notification_as_it_was_in_typed_columns(server: Server, tmp_path: Path) -> None:
    publish_floods(server, 1, 120)
    publish_tides(server, 1, 30)
    server.client.publish("anything", {"place": "Zürich ☃", "n": 1}, {"text": "\x00\u2028"})
    status = archive(server, tmp_path / "archive", tmp_path / "work", rows_per_file=50)
    for event_type, stream in (("flood", "floods"), ("tide", "tide"), ("anything", "anything")):
        assert archived(status.tables.root, stream).equals(in_log(server, event_type))
    assert list(streams(status.tables.root)) == ["anything", "floods", "tide"]
    assert ranges(status.tables.root, "floods") == [(1, 40), (41, 80), (81, 120)]
    table = pq.read_table(Table(status.tables.root, "floods").snapshot().files[0].path)
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
        "bbox": "struct<xmin: float, ymin: float, xmax: float, ymax: float>",  # as GeoParquet has it
        "identifier": "string",
        "payload": "string",
    }
    assert table.column("severity").to_pylist()[:3] == [2, 3, 4]
    assert table.column("depth").to_pylist()[:3] == [0.25, 0.5, 0.75]
    assert set(table.column("event_type").to_pylist()) == {"flood"}
    assert {name: each.last for name, each in status.streams().items()} == {"anything": 1, "floods": 120, "tide": 30}


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
        status = archive(later, root, work)
        assert archived(status.tables.root, "tide").equals(in_log(later, "tide"))
        assert archived(status.tables.root, "brand-new").equals(in_log(later, "brand-new"))
    table = DeltaTable(Table(status.tables.root, "tide").folder).to_pyarrow_table().sort_by("sequence")
    assert table.column("severity").to_pylist()[-1] is None
    assert table.column("severity__long").to_pylist() == [None] * 5 + [3]
    assert table.column("height").to_pylist() == [None] * 5 + [1.5]
    assert table.column("version").to_pylist()[-1] is None


@pytest.mark.usefixtures("spark")
def test_what_was_deleted_before_it_was_archived_is_nothing_wrong(server: Server, tmp_path: Path) -> None:
    root, work = tmp_path / "archive", tmp_path / "work"
    publish_tides(server, 1, 3)
    archive(server, root, work)
    publish_tides(server, 4, 8)
    server.client.wipe_all()
    publish_tides(server, 9, 10)
    server.client.delete("/api/v1/admin/notification/tide@10")
    status = archive(server, root, work)
    rows = archived(status.tables.root, "tide")
    assert rows.column("sequence").to_pylist() == [1, 2, 3, 9]
    assert ranges(status.tables.root, "tide") == [(1, 3), (4, 10)]
    assert [each.last_error for each in status.streams().values()] == [None]
    later = ArchiveStatus(str(root))
    later.read()
    assert [each.last_error for each in later.streams().values()] == [None], "nor after a restart"


@pytest.mark.usefixtures("spark")
def test_a_table_that_cannot_be_read_stops_no_other_stream(server: Server, tmp_path: Path) -> None:
    root, work = tmp_path / "archive", tmp_path / "work"
    publish_tides(server, 1, 3)
    publish_floods(server, 1, 3)
    archive(server, root, work)
    (broken,) = (root / "tide" / "_delta_log").glob("*.json")
    text = broken.read_text()
    broken.write_text(text.replace('"minWriterVersion":2', '"minWriterVersion":99').replace('{"add"', '{"odd'))
    publish_tides(server, 4, 5)
    publish_floods(server, 4, 5)
    status = archive(server, root, work)
    assert archived(status.tables.root, "floods").equals(in_log(server, "flood"))
    assert status.streams()["floods"].last_error is None
    assert "the table of stream 'tide' cannot be used" in (status.streams()["tide"].last_error or "")
    assert status.streams()["tide"].gapless == 0, "the log keeps all of it"
    broken.write_text(text)
    status = archive(server, root, work)
    assert archived(status.tables.root, "tide").equals(in_log(server, "tide"))
    assert status.streams()["tide"].last_error is None


@pytest.mark.usefixtures("spark")
def test_all_that_is_left_of_a_range_may_be_nothing(server: Server, tmp_path: Path) -> None:
    publish_tides(server, 1, 3)
    server.client.wipe_all()
    status = archive(server, tmp_path / "archive", tmp_path / "work")
    (file,) = Table(status.tables.root, "tide").snapshot().files
    assert (file.first, file.last, pq.read_metadata(file.path).num_rows) == (1, 3, 0)


@pytest.mark.usefixtures("spark")
def test_the_archive_of_another_log_is_not_continued(server: Server, tmp_path: Path) -> None:
    root, work = tmp_path / "archive", tmp_path / "work"
    publish_tides(server, 1, 5)
    archive(server, root, work)
    with Server(CONFIGURATION, tmp_path / "other") as other:
        publish_tides(other, 1, 2)
        status = archive(other, root, work)
    assert status.streams()["tide"].last == 5
    assert "the log ends at sequence 2, the archive at 5" in (status.streams()["tide"].last_error or "")
    assert archived(status.tables.root, "tide").equals(in_log(server, "tide"))


@pytest.mark.usefixtures("spark")
def test_a_server_that_is_away_or_something_else_is_named(tmp_path: Path, server: Server) -> None:
    url = server.url
    server.stop()
    archiver = Archiver(str(tmp_path / "archive"), tmp_path / "work", "local[2]")
    archiver.open()
    with pytest.raises(PipelineError, match=f"no server answers at {url}"):
        archiver.run_once(ArchiveSettings(url=url))


@pytest.mark.usefixtures("spark")
def test_two_archivers_at_once_archive_everything_once(server: Server, tmp_path: Path) -> None:
    publish_tides(server, 1, 50)
    root = tmp_path / "archive"
    archivers = [Archiver(str(root), tmp_path / f"work-{number}", "local[2]") for number in range(2)]
    refused: list[str] = []

    def work(archiver: Archiver) -> None:
        try:
            archiver.run_once(ArchiveSettings(url=server.url, rows_per_round=10))
        except PipelineError as error:
            refused.append(str(error))

    for archiver in archivers:
        archiver.open()
    threads = [threading.Thread(target=work, args=(archiver,)) for archiver in archivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another server or command archives it too" in words for words in refused)
    assert len(refused) < 2
    assert archived(str(root), "tide").equals(in_log(server, "tide"))


@pytest.mark.usefixtures("spark")
def test_one_who_hears_while_it_writes_that_another_was_faster_adds_nothing(server: Server, tmp_path: Path) -> None:
    publish_floods(server, 1, 5)
    publish_tides(server, 1, 5)
    root, refused = tmp_path / "archive", list[str]()
    slow, quick = (Archiver(str(root), tmp_path / name, "local[2]") for name in ("slow", "quick"))
    for archiver in (slow, quick):
        archiver.open()

    def work() -> None:
        try:
            slow.run_once(ArchiveSettings(url=server.url))
        except PipelineError as error:
            refused.append(str(error))

    thread = threading.Thread(target=work)
    with slow.status.removals.settling("floods", 0):  # it waits here with its first commit, and its second is planned
        thread.start()
        until(lambda: any(root.glob("floods/*.parquet")) and any(root.glob("tide/*.parquet")), 150)
        quick.run_once(ArchiveSettings(url=server.url))
        slow.status.refresh("tide")
    thread.join()
    assert [each for each in refused if "another server or command archives it too" in each] == refused != []
    for event_type, stream in (("flood", "floods"), ("tide", "tide")):
        assert archived(str(root), stream).equals(in_log(server, event_type))


@pytest.mark.usefixtures("spark")
def test_a_file_that_does_not_follow_the_watermark_is_refused(server: Server, tmp_path: Path) -> None:
    publish_tides(server, 1, 20)
    status = archive(server, tmp_path / "archive", tmp_path / "work")
    table = status.tables.of("tide")
    files = made(table, 1, 20)
    with pytest.raises(PipelineError, match="is archived up to 20 already"):
        table.commit(files, watermark=20, after=0)
    assert archived(status.tables.root, "tide").equals(in_log(server, "tide"))
