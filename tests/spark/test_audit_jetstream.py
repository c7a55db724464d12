"""A stream on a broker that our server did not write, audited through it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aviso_server.cli import main
from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.harness import Server
from tests.harness.broker import ask, publish, single

STREAM = {"name": "RIVERS", "subjects": ["rivers.>"], "max_msgs_per_subject": -1, "storage": "file"}
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_schema": {
        "river": {
            "topic": {"base": "rivers", "key_order": ["gauge", "date", "time"]},
            "identifier": {
                "gauge": {"type": "StringHandler", "required": True},
                "date": {"type": "DateHandler", "required": True},
                "time": {"type": "TimeHandler", "required": True},
            },
            "storage_policy": {"allow_duplicates": True},
        }
    },
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with what the reference server leaves there: subjects and payloads, and no headers of ours."""
    with single(tmp_path_factory.mktemp("broker")) as running:
        assert "error" not in ask(running.url, "STREAM.CREATE.RIVERS", STREAM)
        hours = [f"{hour:02d}00" for hour in range(24)]
        messages = [(f"rivers.gauge%2E{gauge}.20250706.{hour}", hour) for hour in hours for gauge in "ab"]
        publish(running.url, *[(subject, json.dumps({"at": hour}).encode(), None) for subject, hour in messages])
        yield running


def audit(server: Server, *arguments: str) -> tuple[int, dict[str, Any]]:
    given = ["pipeline", "audit", *arguments, "--url", server.url, "--config", str(server.config_file), "--json"]
    with chdir(server.directory):
        done = CliRunner().invoke(main, given)
    assert done.exit_code in (0, 1), done.stderr
    return done.exit_code, json.loads(done.stdout)["streams"]["rivers"]


def test_a_stream_of_another_program(spark: SparkSession, broker: LocalBroker, tmp_path: Path) -> None:
    backend = {"kind": "jetstream", "jetstream": {"nats_url": broker.url}}
    with Server({**CONFIG, "notification_backend": backend}, tmp_path / "server") as server:
        code, found = audit(server)
        assert (code, found["verdict"], found["defects"]) == (0, "clean", [])
        assert (found["acknowledged"], found["log"]["rows"], found["archive"]) == (48, 48, None)
        assert "no archive was looked at" in found["unchecked"]

        assert ask(broker.url, "STREAM.MSG.DELETE.RIVERS", {"seq": 17})["success"]
        publish(broker.url, ("rivers.gauge%2Ea.20250707.06:00", b"1", None))  # canonical is 0600
        code, found = audit(server, "river")
        assert (code, found["verdict"]) == (1, "defects")
        shown = [(each["kind"], each["where"], each["first"], each["last"]) for each in found["defects"]]
        assert shown == [("hole", "log", 17, 17), ("form", "log", 49, 49)]
        expected = '{"date":"20250707","gauge":"gauge.a","time":"0600"}'
        assert found["defects"][1]["reason"] == f"identifier: expected {expected}"
