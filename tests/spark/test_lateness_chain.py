"""From the archive to an alarm: the server's own pipeline process learns, and the server says what is overdue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from aviso_server.model.lateness import DAY, day_text
from aviso_server.model.notification import Notification
from aviso_server.model.times import seconds_text
from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.model.event_types import event_type
from tests.spark.archive.keeping import until
from tests.spark.stored import store

FIELDS = {"port": "StringHandler", "date": "DateHandler"}
TIDE = event_type("tide", FIELDS, base="tides", order=["port", "date"])
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "lake", "work_path": "work", "interval": "1s", "spark": "local[2]"},
    "insight": {"enabled": False},
    "lateness": {"interval": "3s", "path": "lateness"},
    "notification_schema": {
        "tide": {
            "identifier": {name: {"type": kind, "required": False} for name, kind in FIELDS.items()},
            "topic": {"base": "tides", "key_order": ["port", "date"]},
            "lateness": {"enabled": True, "tolerance": "1s"},
        }
    },
}
PAST = 20  # days
# Nobody knows how long Java takes to start. So ports are expected one after the other: some always lie ahead.
PORTS = 300
APART = 2  # seconds
WAIT = 300.0  # seconds


@pytest.mark.long  # a server with a Spark of its own, and products that must be late first
def test_what_the_archive_shows_as_usual_is_missed(tmp_path: Path) -> None:
    now = int(time.time())
    expected = {f"p{number}": now + number * APART for number in range(PORTS)}
    days = {port: moment // DAY for port, moment in expected.items()}
    past = sorted(
        (moment - back * DAY, port, days[port] - back) for port, moment in expected.items() for back in range(1, PAST)
    )
    notifications = []
    for sequence, (second, port, day) in enumerate(past, 1):
        draft = TIDE.check({"port": port, "date": day_text(day)}, None)
        notifications.append(Notification(sequence, second * 10**9, draft.topic, draft.identifier, draft.payload))
    store(tmp_path / "lake", TIDE, notifications)

    with Server(CONFIG, tmp_path) as server, server.client.watch("aviso_lateness", {}) as watcher:
        event = watcher.notification(WAIT)
        identifier, payload = event["data"]["identifier"], event["data"]["payload"]
        port = payload["identifier"]["port"]
        assert identifier == {
            "expected_event": "tide",
            "combination": f"port={port}",
            "date": day_text(days[port]),
            "status": "overdue",
            "expected_at": seconds_text(expected[port]),
        }
        assert payload["overdue_at"] == seconds_text(expected[port] + 1)
        assert payload["seen_days"] == PAST - 1
        assert time.time() > expected[port] + 1, "and not before it was"
        overview = server.client.get("/api/v1/admin/overview").json()["lateness"]
        assert overview["watched"] == PORTS
        assert overview["learned_at"] is not None

        assert server.client.notify("tide", {"port": port, "date": day_text(days[port])}).status == 200

        def arrived() -> list[dict[str, Any]]:
            said = server.client.replay("aviso_lateness", {"status": "arrived"}).notifications
            return [each["data"] for each in said]

        until(arrived, PATIENCE, lambda: server.stderr)
        (late,) = arrived()
        assert late["identifier"]["combination"] == f"port={port}"
        assert late["payload"]["id"] == f"tide@{len(notifications) + 1}"
        in_time = next(each for each, moment in expected.items() if moment > time.time() + 3)
        assert server.client.notify("tide", {"port": in_time, "date": day_text(days[in_time])}).status == 200
        until(lambda: time.time() > expected[in_time] + 5, PATIENCE)  # it would have been said by now
        said = server.client.replay("aviso_lateness", {"status": "overdue"}).notifications
        names = [each["data"]["payload"]["identifier"]["port"] for each in said]
        assert in_time not in names
        assert len(set(names)) == len(names)
