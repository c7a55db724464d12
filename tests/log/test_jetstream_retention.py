"""Retention policies under which a broker removes what was delivered."""

from __future__ import annotations

from pathlib import Path

from tests.faults.recorder import configuration
from tests.harness import Server
from tests.harness.broker import ask, single

TIDE = {"place": "x", "level": 1}


def test_live_delivery_while_somebody_is_interested(tmp_path: Path) -> None:
    policy = "interest"
    with (
        single(tmp_path / "broker") as broker,
        Server(configuration(broker.url, retention_policy=policy), tmp_path / "server") as server,
    ):
        server.client.publish("tide", TIDE, "nobody watches")
        assert ask(broker.url, "STREAM.INFO.TIDE")["config"]["retention"] == policy
        with server.client.watch("tide", {}) as first, server.client.watch("tide", {"level": 1}) as second:
            for stream in (first, second):
                stream.until("connection_established")
            for number in range(20):
                server.client.publish("tide", TIDE, number)
            for stream in (first, second):
                events = [stream.notification() for _ in range(20)]
                assert [event["data"]["payload"] for event in events] == list(range(20))
        assert f"retention policy '{policy}' removes notifications" in server.stdout + server.stderr
