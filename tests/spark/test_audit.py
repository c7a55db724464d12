"""A server with its archive, audited: clean streams are clean, planted defects are found and nothing else.

Spark takes long to start, so the tests stand in an order: each goes on where the one before it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction
from pyspark.sql import SparkSession

from aviso_server.lake.files import Covered
from aviso_server.lake.removal_journal import read_removals
from aviso_server.lake.remove import Removed
from aviso_server.lake.table import Table, Tables
from aviso_server.spark.audit import Repairer, gather_evidence, to_mend
from aviso_server.spark.audit_comparison import Audit, Explained, keep_verdict
from aviso_server.spark.tasks import run_tasks
from pyspark_aviso.options import read_options
from tests.harness import Server
from tests.harness.metrics import scrape, with_metrics
from tests.spark.archive.keeping import until
from tests.spark.audit_scene import (
    CONFIG,
    audited,
    damage,
    found,
    lose_from_log,
    publish,
    with_identifier,
    with_payload,
)

WAIT = 300.0  # seconds


class Scene:
    """The server under test, the number of its metrics port, and what was found in it last."""

    def __init__(self, server: Server, metrics: int) -> None:
        self.server = server
        self.metrics = metrics
        self.root = server.directory / "lake"
        self.audit: Audit | None = None

    def found(self) -> Audit:
        assert self.audit is not None, "the test before this one has failed"
        return self.audit

    def ready(self) -> dict[str, Any]:
        archive: dict[str, Any] = self.server.client.get("/ready").json()["archive"]
        return archive

    def state(self, stream: str) -> dict[str, Any]:
        listed = self.server.client.get("/api/v1/streams").json()["streams"]
        return next(each for each in listed if each["stream"] == stream)

    def settle(self) -> None:
        """Wait until everything is archived and everything that was deleted has left the files."""
        until(lambda: self.ready()["state"] == "running", WAIT, self.words)
        until(lambda: all(each["lag"] == 0 for each in self.ready()["streams"].values()), WAIT, self.words)
        until(lambda: not read_removals(self.server.directory / "work" / "removals.jsonl"), WAIT, self.words)

    def words(self) -> str:
        return f"{self.ready()}\n{self.server.stderr[-2000:]}"


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    config = with_metrics(CONFIG)
    with Server(config, tmp_path_factory.mktemp("audit") / "server") as server:
        here = Scene(server, config["metrics"]["port"])
        for name in ("tide", "wind", "newest", "ferry"):
            publish(server, name, 1, 60)
        publish(server, "wiped", 1, 10)
        request.getfixturevalue("spark")  # starts while that of the server does
        here.settle()
        until(lambda: here.state("winds")["trimmed"] == 40, WAIT, here.words)
        until(lambda: here.state("newest")["count"] == 5, WAIT, here.words)
        for name in ("tides@5", "tides@30", "winds@55"):
            assert server.client.request("DELETE", f"/api/v1/admin/notification/{name}").status == 200
        body = json.dumps({"stream_name": "wiped"}).encode()
        headers = (("Content-Type", "application/json"),)
        assert server.client.request("DELETE", "/api/v1/admin/wipe/stream", body, headers).status == 200
        publish(server, "wiped", 11, 15)
        here.settle()
        yield here


def test_deletes_wipes_retention_and_replacement_are_explained(scene: Scene, spark: SparkSession) -> None:
    audit = scene.audit = audited(spark, scene.server)
    assert {name: found(each) for name, each in audit.streams.items()} == {name: [] for name in audit.streams}
    assert audit.verdict == "clean"
    assert set(audit.streams) == {"tides", "winds", "newest", "wiped", "ferry"}
    tides = audit.streams["tides"]
    assert (tides.acknowledged, tides.lag, tides.same, tides.explained.deleted) == (60, 0, 58, 2)
    assert sum(each.log for each in tides.hours) == sum(each.archive for each in tides.hours) == 58
    winds = audit.streams["winds"]
    assert winds.log is not None
    assert winds.archive is not None
    assert (winds.log.first, winds.log.last, winds.archive.rows) == (41, 60, 59)
    assert audit.streams["wiped"].explained.wiped == 10
    assert audit.streams["newest"].archive is not None
    assert audit.streams["newest"].archive.rows == 60


def test_slices_do_not_matter(scene: Scene, spark: SparkSession) -> None:
    whole = scene.found().streams
    cut = audited(spark, scene.server, "winds", "wiped", slice_length=17).streams
    assert cut == {name: whole[name] for name in ("winds", "wiped")}


def test_planted_defects_are_found_and_nothing_else(scene: Scene, spark: SparkSession) -> None:
    scene.server.stop()
    root = scene.root
    damage(root, "tides", 10, lambda rows: [])
    damage(root, "tides", 12, lambda rows: [*rows, *rows])
    damage(root, "tides", 14, with_payload('{"n":41}'))
    damage(root, "tides", 16, with_identifier(at="06:00"))
    damage(root, "winds", 3, lambda rows: [])
    damage(root, "winds", 5, lambda rows: [*rows, *rows])
    damage(root, "winds", 7, with_payload('{"n": 7}'))
    damage(root, "winds", 50, with_payload('{"n":51}'))
    damage(root, "ferry", 20, with_identifier(port="elsewhere"))
    lose_from_log(scene.server, "tides", 45)
    scene.server.start()

    audit = scene.audit = audited(spark, scene.server)
    assert {name: found(each) for name, each in audit.streams.items()} == {
        "tides": [
            ("hole", "archive", 10, 10),
            ("duplicate", "archive", 12, 12),
            ("content", "archive", 14, 14),
            ("form", "archive", 16, 16),
            ("hole", "log", 45, 45),
        ],
        "winds": [
            ("hole", "archive", 3, 3),
            ("duplicate", "archive", 5, 5),
            ("form", "archive", 7, 7),
            ("content", "archive", 50, 50),
        ],
        "ferry": [("form", "archive", 20, 20)],
        "newest": [],
        "wiped": [],
    }
    assert audit.verdict == "defects"
    assert [each.repairable for each in audit.streams["tides"].defects] == [True, True, True, True, False]
    assert [each.repairable for each in audit.streams["winds"].defects] == [False, True, False, True]
    hours = {each.hour for each in audit.streams["tides"].hours}
    assert all(each.hours is not None and set(each.hours) <= hours for each in audit.streams["tides"].defects)


def test_the_server_shows_the_verdict(scene: Scene) -> None:
    assert scene.ready()["audit"] is None
    keep_verdict(str(scene.root), scene.found())
    until(lambda: scene.ready()["audit"], 20, scene.words)
    shown = scene.server.client.get("/api/v1/admin/overview").json()["audit"]
    assert shown == scene.ready()["audit"]
    assert (shown["verdict"], shown["streams"]["tides"]["verdict"]) == ("defects", "defects")
    assert shown["streams"]["tides"]["defects"] == 5
    samples = scrape(scene.server, scene.metrics)
    assert samples.value("aviso_audit_verdict", verdict="defects") == 1
    assert samples.value("aviso_audit_verdict", verdict="clean") == 0
    assert samples.value("aviso_audit_defects", event_type="tide") == 5
    assert samples.value("aviso_audit_timestamp_seconds") > 0


def test_what_the_log_still_has_is_mended_while_the_server_runs(scene: Scene, spark: SparkSession) -> None:
    until(lambda: scene.ready()["state"] == "running", WAIT, scene.words)
    publish(scene.server, "tide", 61, 70)
    repairer = Repairer(Tables(str(scene.root)), read_options({"url": scene.server.url}), partial(run_tasks, spark))
    mended = list(repairer.run(to_mend(scene.found())))
    assert {each.stream for each in mended} == {"tides", "winds", "ferry"}
    assert [msgspec.to_builtins(each) for each in mended if each.reason is not None] == []
    scene.settle()

    audit = audited(spark, scene.server)
    assert {stream: found(each) for stream, each in audit.streams.items() if each.defects} == {
        "tides": [("hole", "log", 45, 45)],
        "winds": [("hole", "archive", 3, 3), ("form", "archive", 7, 7)],
    }
    assert to_mend(audit) == {}
    assert audit.streams["tides"].acknowledged == 70


def test_a_file_that_is_gone_broken_or_taken_out_is_found(scene: Scene, spark: SparkSession) -> None:
    scene.server.stop()
    for name, gone in (("newest", False), ("ferry", True)):
        for file in Table(str(scene.root), name).snapshot().files:
            if gone:
                Path(file.path).unlink()
            else:
                Path(file.path).write_bytes(Path(file.path).read_bytes()[:-100])
    tides = Table(str(scene.root), "tides")
    for file in tides.snapshot().files:  # as somebody would who knows Delta, but not us
        delta = DeltaTable(tides.folder)
        delta.create_write_transaction([RemoveAction(file.name, True, 1)], "append", delta.schema())
    log = sorted((scene.root / "wiped" / "_delta_log").glob("*.json"))
    for commit in log:
        if commit != log[0]:
            commit.unlink()  # and a backup of the table was brought back
    scene.server.start()
    audit = audited(spark, scene.server, "newest", "ferry", "tides", "wiped")
    assert [each[0] for each in found(audit.streams["newest"])] == ["unreadable"]
    assert [each[0] for each in found(audit.streams["ferry"])] == ["unreadable"]
    assert ("hole", "archive") in [each[:2] for each in found(audit.streams["tides"])]
    wiped = audit.streams["wiped"]
    assert wiped.lag > 0 or wiped.verdict == "defects"


def test_a_replay_that_meets_a_broken_file_names_it_and_so_does_ready(scene: Scene) -> None:
    until(lambda: scene.ready()["state"] == "running", WAIT, scene.words)
    broken = Table(str(scene.root), "newest").snapshot().files[0].name
    body = json.dumps({"event_type": "newest", "identifier": {"port": "*", "level": {"gte": 0}}, "from_id": "1"})
    with scene.server.client.open("replay", body.encode(), (("Content-Type", "application/json"),)) as stream:
        frames = stream.rest(WAIT)
        assert "replay_completed" not in stream.kinds
    assert any(broken in str(frame) for frame in frames), "the error names the file"
    assert broken in scene.ready()["streams"]["newest"]["last_error"]


def test_removals_on_their_way_and_what_footers_say_count_together() -> None:
    footers = Covered(1, 90, deleted=((8, 8), (9, 9)), wiped=((1, 2),), overtaken=((20, 22),))
    known = gather_evidence(footers, Removed(3, (7,)), trimmed=5, last=100)
    assert (known.wiped, known.deleted, known.overtaken, known.trimmed) == (((1, 3),), ((7, 9),), ((20, 22),), 5)
    assert known.unexplained([(1, 25)], in_log=False) == [(4, 6), (10, 19), (23, 25)]
    assert known.unexplained([(1, 25)], in_log=True) == [(6, 6), (10, 25)]
    assert known.explained([(1, 25)], in_log=False) == Explained(3, 3, 3)


def test_without_an_archive_only_the_log_explains() -> None:
    known = gather_evidence(None, Removed(), trimmed=4, last=100)
    assert known.unexplained([(1, 6)], in_log=True) == [(5, 6)]
    assert known.unexplained([(1, 6)], in_log=False) == [(1, 6)]
