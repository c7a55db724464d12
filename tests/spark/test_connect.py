"""The archive over Spark Connect: a real Connect server, and no Java of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.harness import Server
from tests.harness.objects import BUCKET, environment, store_running
from tests.lake.scene import rows_in
from tests.spark.archive.keeping import SOURCES, children, in_log, until
from tests.spark.daemons import HERE, SPARK, at_work, daemon, run_pipeline, said
from tests.spark.quick import end_java
from tests.spark.scene import CONFIGURATION, publish_floods, publish_tides

pytestmark = pytest.mark.long  # a Spark of its own, and a client for each command

CLIENT = Path(sys.prefix) / "connect"
"""The packages of `aviso-server[connect]`, apart from the others: pandas would be loaded by whoever uses Arrow."""

NEAR = "(1,1,1,3,3,3,3,1,1,1)"
FAR = "(50,50,50,51,51,51,51,50,50,50)"


@contextmanager
def connect_server(directory: Path, port: int = 0) -> Iterator[str]:
    """A Spark Connect server; where it answers."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    start = (str(SPARK / "bin" / "spark-submit"), "--master", "local[2]", *options)
    service = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    with daemon(directory, "connect", *start, *service) as log:
        yield said(log, r"Spark Connect server started at: (127[.]0[.]0[.]1:[0-9]+)")


class Connected:
    """A Spark Connect server that can be started again, under the same address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._place = self._stack.enter_context(connect_server(directory))

    @property
    def address(self) -> str:
        """As `archive.spark` has it."""
        return f"sc://{self._place}"

    def stop(self) -> None:
        """End it; nothing of it is left."""
        self._stack.close()
        until(lambda: not at_work(self._directory), 30, lambda: "\n".join(at_work(self._directory)))

    def restart(self) -> None:
        """End it and start it again: it does not know its clients any more."""
        self.stop()
        self._stack.enter_context(connect_server(self._directory, int(self._place.rpartition(":")[2])))


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    end_java()  # there is enough Java without that of other tests
    with pytest.MonkeyPatch.context() as patch:
        assert CLIENT.is_dir(), "'make test' installs what Spark Connect needs"
        patch.setenv("PYTHONPATH", str(CLIENT))
        directory = tmp_path_factory.mktemp("connect").resolve()
        with store_running(directory) as store:
            for name, value in environment(store.url).items():
                patch.setenv(name, value)  # of the Connect server too: its workers write to the store
            running = Connected(directory)
            yield running
            running.stop()


def test_commands(connected: Connected, tmp_path: Path) -> None:
    path = f"s3://{BUCKET}/commands"
    configuration = {**CONFIGURATION, "archive": {"enabled": False, "path": path}}
    with Server(configuration, tmp_path / "server") as server:
        publish_floods(server, 1, 100)
        publish_tides(server, 1, 30)
        *steps, summary = run_pipeline(server, "archive", "--once", "--url", server.url, "--spark", connected.address)
        assert {step["stream"]: step["last"] for step in steps} == {"floods": 100, "tide": 30}
        assert summary["archived"] == 130
        assert rows_in(path, "floods").equals(in_log(server, "flood"))
        assert rows_in(path, "tide").equals(in_log(server, "tide"))

        [facts] = run_pipeline(server, "status", "--url", server.url, "--spark", connected.address)
        shown = {name: (each["last"], each["lag"], each["files"]) for name, each in facts["streams"].items()}
        assert shown == {"floods": (100, 0, 1), "tide": (30, 0, 1)}

        wanted = ("flood", "region=north", 'severity={"gte": 5}', "--from", "20", "--to", "floods@80")
        found = run_pipeline(server, "replay", *wanted, "--spark", connected.address)
        # of number n the region is north if n is odd, and the severity n % 7 + 1
        expected = [number for number in range(20, 81) if number % 2 and number % 7 + 1 >= 5]
        assert [event["sequence"] for event in found] == expected


def trimmed(server: Server) -> int:
    """Up to which sequence only the archive has floods."""
    streams = server.client.get("/api/v1/streams").json()["streams"]
    return next((int(each["trimmed"]) for each in streams if each["stream"] == "floods"), 0)


def test_a_server_whose_archive_is_kept_by_spark_connect(connected: Connected, tmp_path: Path) -> None:
    schema = CONFIGURATION["notification_schema"]
    configuration = {
        **CONFIGURATION,
        "archive": {
            "enabled": True,
            "path": f"s3://{BUCKET}/served",
            "work_path": "work",
            "interval": "1s",
            "spark": connected.address,
        },
        "notification_schema": {**schema, "flood": {**schema["flood"], "storage_policy": {"max_messages": 10}}},
    }
    with Server(configuration, tmp_path / "server", environment=HERE) as server:
        publish_floods(server, 1, 200)
        publish_tides(server, 1, 3)
        until(lambda: trimmed(server) == 190, 120, lambda: server.client.get("/ready").body.decode())
        assert not children(int((server.directory / "work" / "_lock").read_text())), "there was to be no Java here"

        def sequences(**identifier: object) -> list[int]:
            found = server.client.replay("flood", {"region": "north", "time": "1200", **identifier})
            assert found.kinds[-2:] == ["replay_completed", "connection-closing"]
            return [each["sequence"] for each in found.notifications]

        # of number n the region is north if n is odd, the severity n % 7 + 1 and the depth n / 4
        severe = [number for number in range(1, 201, 2) if number % 7 + 1 >= 5]
        assert sequences(severity={"gte": 5}) == severe
        assert sequences(severity={"gte": 5}, polygon=NEAR) == severe
        assert sequences(severity={"gte": 5}, polygon=FAR) == []
        assert sequences(severity={"gte": 1}, depth={"between": [10, 20]}) == list(range(41, 81, 2))

        connected.restart()
        publish_floods(server, 201, 250)
        until(lambda: trimmed(server) == 240, 120, lambda: server.client.get("/ready").body.decode())
        assert sequences(severity={"gte": 1}) == list(range(1, 251, 2))


def test_without_its_client_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ImportError('there is no pandas')")
    done = subprocess.run(
        [sys.executable, "-m", "aviso_server", "pipeline", "archive", "--once", "--spark", "sc://127.0.0.1:1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCES), str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "sc://127.0.0.1:1 is a Spark Connect server, and its client is not installed" in done.stderr
    assert "pip install 'aviso-server[connect]'" in done.stderr
