"""A real server with a tiny model: alarms are published once, over kill -9 and restarts, and can be watched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviso_server.model.lateness import DAY, LATENESS_FOLDER, Learned, Rhythm, day_text, encode, file_name
from tests.harness import Server
from tests.harness.metrics import scrape, with_metrics
from tests.harness.patience import PATIENCE

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"path": "archive"},
    "lateness": {"path": "lateness"},
    "notification_schema": {
        "tide": {
            "identifier": {
                "port": {"type": "StringHandler", "required": False},
                "date": {"type": "DateHandler", "required": False},
            },
            "topic": {"base": "tides", "key_order": ["port", "date"]},
            "lateness": {"enabled": True, "tolerance": "1s"},
        },
    },
}


class Coast:
    """A server that expects tides of some ports today."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.today = int(time.time()) // DAY
        self.rhythms: list[Rhythm] = []

    def expect(self, *ports: str, seconds: int) -> float:
        """A new model that has these ports too, overdue in so many seconds; when that is."""
        now = int(time.time()) - self.today * DAY
        self.rhythms += [
            Rhythm(
                values=(port,),
                weekdays=0b1111111,
                earliest=now + seconds,
                expected=now + seconds,
                overdue=now + seconds,
                spread=0,
                seen=40,
            )
            for port in ports
        ]
        model = Learned(
            event_type="tide", learned_at=now, until=0, by=("port",), date="date", rhythms=tuple(self.rhythms)
        )
        folder = self.server.directory / "archive" / LATENESS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "draft").write_bytes(encode(model))
        (folder / "draft").replace(folder / file_name("tide"))
        until(lambda: self.overview()["watched"] == len(self.rhythms))
        time.sleep(0.5)  # it is written down too
        return (self.today * DAY) + now + seconds

    def overview(self) -> dict[str, Any]:
        """What an operator sees."""
        shown: dict[str, Any] = json.loads(self.server.client.get("/api/v1/admin/overview").body)["lateness"]
        return shown

    def publish(self, port: str) -> None:
        """The tide of a port arrives."""
        identifier = {"port": port, "date": day_text(self.today)}
        assert self.server.client.notify("tide", identifier).status == 200

    def said(self) -> list[tuple[str, str]]:
        """Everything that was published about late notifications."""
        events = self.server.client.replay("aviso_lateness", {}).notifications
        found = [each["data"]["identifier"] for each in events]
        return [(each["combination"], each["status"]) for each in found]


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long  # products must be late first, on three servers
def test_alarms_over_restarts(tmp_path: Path) -> None:
    config = with_metrics(CONFIG)
    with Server(config, tmp_path) as server:
        coast = Coast(server)
        assert coast.overview() == {"learned_at": None, "watched": 0, "overdue_count": 0, "overdue": []}
        with server.client.watch("aviso_lateness", {"status": "overdue"}) as watcher:
            coast.expect("oslo", "bergen", seconds=10)
            coast.publish("bergen")
            until(lambda: coast.said() == [("port=oslo", "overdue")])
            event = watcher.notification()
        assert event["data"]["identifier"]["expected_event"] == "tide"
        assert event["data"]["payload"]["identifier"] == {"port": "oslo"}
        assert [each["combination"] for each in coast.overview()["overdue"]] == ["port=oslo"]
        numbers = scrape(server, config["metrics"]["port"])
        assert numbers.value("aviso_lateness_overdue", event_type="tide") == 1
        assert numbers.value("aviso_lateness_watched", event_type="tide") == 2
        assert numbers.value("aviso_lateness_alarms_total", event_type="tide", status="overdue") == 1

        server.kill()
        server.start()
        until(lambda: coast.overview()["watched"] == 2)
        assert [each["combination"] for each in coast.overview()["overdue"]] == ["port=oslo"]
        coast.publish("oslo")
        until(lambda: len(coast.said()) == 2)
        assert coast.said() == [("port=oslo", "overdue"), ("port=oslo", "arrived")]

        moment = coast.expect("narvik", "hamar", seconds=12)
        coast.publish("hamar")  # and at once the server is gone: what it saved does not know of it
        server.kill()
        time.sleep(max(0.0, moment + 1 - time.time()))
        server.start()
        until(lambda: len(coast.said()) == 3)
        time.sleep(3)
        assert coast.said()[2:] == [("port=narvik", "overdue")]

        server.stop()
        server.start()
        coast.publish("narvik")
        until(lambda: len(coast.said()) == 4)
        time.sleep(2)
        assert coast.said()[3:] == [("port=narvik", "arrived")]
        assert coast.overview()["overdue"] == []
