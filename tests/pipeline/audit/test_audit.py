"""A server with its archive, audited: clean streams are clean, planted defects are found and nothing else.

Spark takes long to start, so the tests stand in an order: each goes on where the one before it stopped.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.audit.audit import to_mend
from aviso_server.pipeline.audit.findings import Audit, keep_verdict
from aviso_server.pipeline.audit.orders import Outcome, order, outcome
from tests.harness import Server
from tests.harness.metrics import scrape, with_metrics
from tests.pipeline.archive.keeping import until
from tests.pipeline.audit.scene import (
    CONFIG,
    audited,
    damage,
    found,
    lose_from_log,
    publish,
    with_identifier,
    with_payload,
)

pytestmark = pytest.mark.timeout(400)

WAIT = 150.0  # seconds


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
        until(lambda: not list(self.root.glob("*/_tombstones/*")), WAIT, self.words)

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
    keep_verdict(str(scene.root), scene.found(), LOCAL)
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


def test_the_keeper_mends_what_the_log_still_has(scene: Scene, spark: SparkSession) -> None:
    until(lambda: scene.ready()["state"] == "running", WAIT, scene.words)
    publish(scene.server, "tide", 61, 70)
    name = order(str(scene.root), to_mend(scene.found()), LOCAL)
    answers: list[Outcome] = []

    def answered() -> bool:
        answer = outcome(str(scene.root), name, LOCAL)
        answers.extend([] if answer is None else [answer])
        return bool(answers)

    until(answered, 60, scene.words)
    assert answers[0].error is None
    assert {each.stream for each in answers[0].mended} == {"tides", "winds", "ferry"}
    assert [msgspec.to_builtins(each) for each in answers[0].mended if each.reason is not None] == []
    scene.settle()

    audit = audited(spark, scene.server)
    assert {stream: found(each) for stream, each in audit.streams.items() if each.defects} == {
        "tides": [("hole", "log", 45, 45)],
        "winds": [("hole", "archive", 3, 3), ("form", "archive", 7, 7)],
    }
    assert to_mend(audit) == {}
    assert audit.streams["tides"].acknowledged == 70
    assert not list(Path(scene.root).glob("_audit/order-*"))


def test_a_file_that_is_gone_or_broken_is_found(scene: Scene, spark: SparkSession) -> None:
    scene.server.stop()
    (only,) = (scene.root / "newest").glob("*.parquet")
    only.write_bytes(b"PAR1 nothing of the kind")
    for file in (scene.root / "ferry").glob("*.parquet"):
        file.unlink()
    with (scene.root / "_lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that nobody archives it anew meanwhile
        scene.server.start()
        audit = audited(spark, scene.server, "newest", "ferry")
    assert found(audit.streams["newest"]) == [("unreadable", "archive", 1, 60)]
    assert audit.streams["ferry"].notes == ("nothing is archived yet",)
