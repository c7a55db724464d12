"""The archive on a cluster: a real master and a real worker of Spark, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Server
from tests.pipeline.archive.keeping import archived, in_log, until
from tests.pipeline.daemons import HERE, SPARK, at_work, daemon, run_pipeline, said
from tests.pipeline.quick import end_java
from tests.pipeline.scene import CONFIGURATION, publish_floods, publish_tides

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with one worker; afterwards nothing of it is left."""
    end_java()  # there is enough Java without that of other tests
    directory = tmp_path_factory.mktemp("cluster").resolve()
    start = str(SPARK / "bin" / "spark-class")
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        head = daemon(directory, "master", start, "org.apache.spark.deploy.master.Master", *place)
        address = said(stack.enter_context(head), r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        size = ("--cores", "2", "--memory", "2g", "--work-dir", str(directory / "work"))
        hand = daemon(directory, "worker", start, "org.apache.spark.deploy.worker.Worker", *place, *size, address)
        said(stack.enter_context(hand), r"(Successfully registered with master)")
        yield address
    until(lambda: not at_work(directory), 30, lambda: "\n".join(at_work(directory)))


def test_commands(master: str, tmp_path: Path) -> None:
    configuration = {**CONFIGURATION, "archive": {"enabled": False, "path": "lake"}}
    with Server(configuration, tmp_path / "server") as server:
        publish_floods(server, 1, 100)
        publish_tides(server, 1, 30)
        *steps, summary = run_pipeline(server, "archive", "--once", "--url", server.url, "--spark", master)
        assert {step["stream"]: step["last"] for step in steps} == {"floods": 100, "tide": 30}
        assert summary["archived"] == 130
        assert archived(str(server.directory / "lake"), "floods").equals(in_log(server, "flood"))
        assert archived(str(server.directory / "lake"), "tide").equals(in_log(server, "tide"))

        [facts] = run_pipeline(server, "status", "--url", server.url, "--spark", master)
        shown = {name: (each["last"], each["lag"], each["files"]) for name, each in facts["streams"].items()}
        assert shown == {"floods": (100, 0, 1), "tide": (30, 0, 1)}

        wanted = ("flood", "region=north", 'severity={"gte": 5}', "--from", "20", "--to", "floods@80")
        found = run_pipeline(server, "replay", *wanted, "--spark", master)
        # of number n the region is north if n is odd, and the severity n % 7 + 1
        expected = [number for number in range(20, 81) if number % 2 and number % 7 + 1 >= 5]
        assert [event["sequence"] for event in found] == expected


def test_a_server_whose_archive_is_kept_by_a_cluster(master: str, tmp_path: Path) -> None:
    schema = CONFIGURATION["notification_schema"]
    configuration = {
        **CONFIGURATION,
        "archive": {"enabled": True, "path": "lake", "work_path": "work", "interval": "1s", "spark": master},
        "notification_schema": {**schema, "tide": {**schema["tide"], "storage_policy": {"max_messages": 10}}},
    }
    with Server(configuration, tmp_path / "server", environment=HERE) as server:
        publish_tides(server, 1, 200)

        def in_archive_only() -> bool:
            streams = server.client.get("/api/v1/streams").json()["streams"]
            return any(each["stream"] == "tide" and each["trimmed"] == 190 for each in streams)

        until(in_archive_only, 120, lambda: server.client.get("/ready").body.decode())
        # of number n the port is n % 5
        found = server.client.replay("tide", {"port": "port 2"})
        assert found.kinds[-2:] == ["replay_completed", "connection-closing"]
        assert [each["sequence"] for each in found.notifications] == list(range(2, 201, 5))
