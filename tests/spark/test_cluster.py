"""The archive on a cluster: a real master and two real workers of Spark, and the files in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import Server
from tests.harness.objects import BUCKET, environment, store_running
from tests.lake.scene import rows_in
from tests.spark.archive.keeping import in_log, until
from tests.spark.daemons import HERE, SPARK, at_work, daemon, run_pipeline, said
from tests.spark.quick import end_java
from tests.spark.scene import CONFIGURATION, publish_floods, publish_tides

pytestmark = pytest.mark.long  # five processes of Spark, and a driver for each command


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with two workers of one core; afterwards nothing of it is left."""
    end_java()  # there is enough Java without that of other tests
    directory = tmp_path_factory.mktemp("cluster").resolve()
    start = str(SPARK / "bin" / "spark-class")
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        store = stack.enter_context(store_running(directory))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment(store.url).items():
            patch.setenv(name, value)  # workers find the store as the driver does
        head = daemon(directory, "master", start, "org.apache.spark.deploy.master.Master", *place)
        address = said(stack.enter_context(head), r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for name in ("one", "two"):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / name))
            hand = daemon(directory, name, start, "org.apache.spark.deploy.worker.Worker", *place, *size, address)
            said(stack.enter_context(hand), r"(Successfully registered with master)")
        yield address
    until(lambda: not at_work(directory), 30, lambda: "\n".join(at_work(directory)))


def test_commands(master: str, tmp_path: Path) -> None:
    path = f"s3://{BUCKET}/commands"
    configuration = {**CONFIGURATION, "archive": {"enabled": False, "path": path}}
    with Server(configuration, tmp_path / "server") as server:
        publish_floods(server, 1, 100)
        publish_tides(server, 1, 30)
        *steps, summary = run_pipeline(server, "archive", "--once", "--url", server.url, "--spark", master)
        assert {step["stream"]: step["last"] for step in steps} == {"floods": 100, "tide": 30}
        assert summary["archived"] == 130
        assert rows_in(path, "floods").equals(in_log(server, "flood"))
        assert rows_in(path, "tide").equals(in_log(server, "tide"))

        publish_floods(server, 101, 120)
        run_pipeline(server, "archive", "--once", "--url", server.url, "--spark", master)
        [done] = run_pipeline(server, "compact", "--spark", master)
        assert done["rewritten"] == {"floods": 2}
        assert rows_in(path, "floods").equals(in_log(server, "flood"))

        wanted = ("flood", "region=north", 'severity={"gte": 5}', "--from", "20", "--to", "floods@80")
        found = run_pipeline(server, "replay", *wanted, "--spark", master)
        # of number n the region is north if n is odd, and the severity n % 7 + 1
        expected = [number for number in range(20, 81) if number % 2 and number % 7 + 1 >= 5]
        assert [event["sequence"] for event in found] == expected


def test_a_server_that_archives_on_a_cluster(master: str, tmp_path: Path) -> None:
    """It listens everywhere, and workers are told where to find it."""
    schema = CONFIGURATION["notification_schema"]
    archive = {"enabled": True, "path": f"s3a://{BUCKET}/served", "work_path": "work", "interval": "1s"}
    configuration = {
        **CONFIGURATION,
        "application": {**CONFIGURATION["application"], "host": "0.0.0.0"},
        "archive": {**archive, "spark": master},
        "notification_schema": {**schema, "tide": {**schema["tide"], "storage_policy": {"max_messages": 10}}},
    }
    with Server(configuration, tmp_path / "server", environment=HERE) as server:
        publish_tides(server, 1, 200)

        def in_archive_only() -> bool:
            streams = server.client.get("/api/v1/streams").json()["streams"]
            return any(each["stream"] == "tide" and each["trimmed"] == 190 for each in streams)

        until(in_archive_only, 240, lambda: server.client.get("/ready").body.decode())
        # of number n the port is n % 5
        found = server.client.replay("tide", {"port": "port 2"})
        assert found.kinds[-2:] == ["replay_completed", "connection-closing"]
        assert [each["sequence"] for each in found.notifications] == list(range(2, 201, 5))
