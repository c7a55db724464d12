"""The pipeline process as its parent sees it: what it says, and how it ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aviso_server.archive.flight_client import do_job, find_address
from aviso_server.errors import PipelineError
from aviso_server.lake.table import Table
from aviso_server.model.lateness import Watched
from aviso_server.spark.command_jobs import LearnRequest
from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.lake.scene import FLOOD, made
from tests.spark.archive.keeping import Pipeline, archived, children, in_log, is_running, until
from tests.spark.scene import CONFIGURATION, tide

NOBODY = "http://127.0.0.1:9"


@pytest.mark.long  # processes that start Java
def test_the_process_leaves_with_its_parent_and_takes_java_along(tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server, Pipeline(server.url, tmp_path / "pipeline") as pipeline:
        server.client.publish("tide", tide(1), 1)
        pipeline.until_archived("tide", 1)
        (java,) = children(pipeline.pid)
        assert pipeline.hang_up() == 0
        until(lambda: not is_running(java), PATIENCE)


def test_without_java_it_says_so_and_the_archive_can_be_read(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "pipeline" / "archive"), FLOOD.base)
    table.commit(made(table, 1, 100), watermark=100, after=0)
    wanted = FLOOD.compile({}, "replay", lenient=True)
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "nothing")}
    with Pipeline(NOBODY, tmp_path / "pipeline", environment=environment) as pipeline:
        until(lambda: pipeline.ask("status")["job"]["state"] == "waiting", PATIENCE, pipeline.last_words)
        sentence = pipeline.ask("status")["job"]["last_error"]
        assert sentence.startswith("nothing can be archived: Spark needs Java 17 or newer: install it, set JAVA_HOME")
        assert pipeline.last_words().count(sentence) == 1
        assert pipeline.replay(wanted, 1, 100)["sequence"].to_pylist() == list(range(1, 101))
        assert pipeline.ask("delete", stream=FLOOD.base, sequences=[7])["deleted"] == [7]
        assert len(pipeline.replay(wanted, 1, 100)) == 99
        address = find_address(pipeline.directory / "ready.json")
        assert address is not None
        watched = Watched(event_type="flood", stream=FLOOD.base, by=("region",))
        request = LearnRequest(root=pipeline.archive, folder=str(tmp_path), watched=[watched])
        with pytest.raises(PipelineError, match="Spark needs Java 17"):
            do_job(address, "learn", msgspec.to_builtins(request), lambda *words: None)


def test_without_a_token_nobody_could_call_it(tmp_path: Path) -> None:
    pipeline = Pipeline(NOBODY, tmp_path / "pipeline", environment={"AVISO_FLIGHT_TOKEN": ""}).start()
    assert pipeline.wait() == 2
    assert "AVISO_FLIGHT_TOKEN" in pipeline.last_words()


@pytest.mark.long  # processes that start Java
def test_a_second_one_for_the_same_archive_stands_by_and_takes_over(tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server, Pipeline(server.url, tmp_path / "one") as first:
        server.client.publish("tide", tide(1), 1)
        first.until_archived("tide", 1)
        second = Pipeline(server.url, tmp_path / "two")
        second.archive = first.archive
        with second:
            until(lambda: second.ask("status")["job"]["state"] == "standby", 120, second.last_words)
            assert second.ask("status")["job"]["last_error"].endswith(f"is in use by process {first.pid}")
            server.client.publish("tide", tide(2), 2)
            second.until_archived("tide", 2)  # it sees what the other one archives
            first.kill()
            server.client.publish("tide", tide(3), 3)
            second.until_archived("tide", 3, 30)
            assert archived(second.archive, "tide").equals(in_log(server, "tide"))


@pytest.mark.long  # processes that start Java
def test_it_archives_only_while_it_is_told_to(tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server:
        pipeline = Pipeline(server.url, tmp_path / "pipeline", options=("--standby",))
        server.client.publish("tide", tide(1), 1)
        with pipeline:
            until(lambda: pipeline.ask("status")["job"]["state"] == "standby", 120, pipeline.last_words)
            pipeline.tell("archive")
            pipeline.until_archived("tide", 1)
            pipeline.tell("standby")
            until(lambda: pipeline.ask("status")["job"]["state"] == "standby", 30, pipeline.last_words)
            server.client.publish("tide", tide(2), 2)
            pipeline.tell("archive")
            pipeline.until_archived("tide", 2)
