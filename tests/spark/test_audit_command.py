"""`aviso-server pipeline audit` as people run it: exit codes, the report, --repair, and servers that are not ours."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from aviso_server.cli import main
from aviso_server.config import load
from aviso_server.config.settings import Settings
from aviso_server.lake.remove import Removed
from aviso_server.lake.table import Tables
from aviso_server.spark.audit import Auditor, ServerLog
from aviso_server.spark.insight import Rollup, subject_of
from pyspark_aviso.options import read_options
from tests.harness import Server
from tests.spark.archive.keeping import SOURCES, archived, in_log
from tests.spark.audit_scene import archive, damage, file_with, found, lose_from_log, with_identifier, with_payload
from tests.spark.insight_scene import stored_rows
from tests.spark.proxy import Proxy
from tests.spark.scene import CONFIGURATION, publish_floods, publish_tides

CONFIG = {**CONFIGURATION, "archive": {"enabled": False, "path": "lake", "work_path": "work", "spark": "local[2]"}}


def line(server: Server, *arguments: str) -> list[str]:
    given = ["--config", str(server.config_file), "--url", server.url]
    return ["pipeline", "audit", *arguments, *given]


def run(server: Server, *arguments: str) -> tuple[int, str, str]:
    """The command in this process, with the Spark that is there."""
    with chdir(server.directory):
        done = CliRunner().invoke(main, [*line(server, *arguments), "--path", str(server.directory / "lake")])
    return done.exit_code, done.stdout, done.stderr


def run_apart(server: Server, *arguments: str) -> tuple[int, str, str]:
    """The command as people run it."""
    done = subprocess.run(
        [sys.executable, "-m", "aviso_server", *line(server, *arguments)],
        cwd=server.directory,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "HOME": str(server.directory)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long  # each command starts Java
def test_exit_codes_report_and_repair(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path / "server") as server:
        publish_floods(server, 1, 60)
        publish_tides(server, 1, 20)
        root = archive(server)
        damage(root, "floods", 30, with_identifier(region="north"))
        damage(root, "tide", 4, lambda rows: [])
        insight = Rollup(spark, Tables(str(root)))
        floods = subject_of("floods", next(each for each in settings_of(server).event_types if each.name == "flood"))
        assert insight.step(floods) > 0
        assert regions(root, insight) == {"north": 31, "south": 29}

        code, report, errors = run_apart(server)
        assert code == 1, errors
        assert "Defects were found" in report
        lines = [each.split() for each in report.splitlines()]
        assert any(each[:3] == ["30", "form", "archive"] for each in lines)
        assert any(each[:3] == ["4", "hole", "archive"] for each in lines)
        code, report, errors = run(server, "--csv")
        assert code == 1, errors
        heading, *rows = report.splitlines()
        assert heading == "event_type,first,last,what,where,first_hour,last_hour,repairable,why"
        assert [row.split(",")[:5] for row in rows] == [
            ["flood", "30", "30", "form", "archive"],
            ["tide", "4", "4", "hole", "archive"],
        ]
        verdict = json.loads((root / "_audit" / "verdict.json").read_bytes())
        assert (verdict["verdict"], verdict["streams"]["tide"]["defects"]) == ("defects", 1)
        assert insight.step(floods) == 0, "an audit changes nothing"

        code, report, errors = run(server, "--repair", "--json")
        assert code == 0, errors
        answer: dict[str, Any] = json.loads(report)
        assert answer["verdict"] == "clean"
        assert [(each["stream"], each["reason"]) for each in answer["repaired"]] == [("floods", None), ("tide", None)]
        assert sum(hour["same"] for hour in answer["streams"]["floods"]["hours"]) == 60
        assert archived(str(root), "floods").equals(in_log(server, "flood"))
        assert archived(str(root), "tide").equals(in_log(server, "tide"))
        assert json.loads((root / "_audit" / "verdict.json").read_bytes())["verdict"] == "clean"
        assert not list((server.directory / "work").glob("command-*")), "commands clean up behind themselves"

        assert insight.step(floods) > 0, "what was mended is counted anew"
        assert regions(root, insight) == {"north": 30, "south": 30}
        assert insight.step(floods) == 0

        code, _, errors = run(server, "nothing-of-the-kind")
        assert code == 2
        assert "there is no stream 'nothing-of-the-kind'; streams: floods, tide" in errors
        url = server.url
    code, _, errors = run(server)
    assert code == 2
    assert f"no server answers at {url}" in errors


def settings_of(server: Server) -> Settings:
    return load({}, server.config_file)


def regions(root: Path, insight: Rollup) -> dict[str, int]:
    """How many notifications of each region the tables of insight have."""
    state = insight.state("floods")
    assert state is not None
    counts: dict[str, int] = {}
    for _, field, value, count, *_ in stored_rows(root, state)["fields"]:
        if field == "region":
            counts[value] = counts.get(value, 0) + count
    return counts


def test_a_server_that_only_replays(spark: SparkSession, tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path / "server") as server:
        publish_floods(server, 1, 40)
        publish_tides(server, 1, 10)
        server.stop()
        lose_from_log(server, "tide", 7)
        server.start()
        with Proxy(server, old=True) as proxy:
            log = ServerLog(read_options({"url": proxy.url}), settings_of(server).event_types)
            assert not log.lists_streams
            audit = Auditor(spark, log, Tables(str(tmp_path / "no archive")), lambda stream: Removed()).run(())
    tides, floods = audit.streams["tide"], audit.streams["flood"]
    assert found(tides) == [("hole", "log", 7, 7)]
    assert tides.archive is None
    assert any("does not say which sequences" in sentence for sentence in tides.unchecked)
    assert "no archive was looked at" in tides.unchecked
    assert floods.verdict == "unchecked"
    assert "wants a value for the field 'time'" in floods.unchecked[0], "such a server cannot be asked for all of them"


REPAIR = """
import sys
from aviso_server.lake.table import Tables
from aviso_server.spark.audit import Repairer
from pyspark_aviso.options import read_options
url, root = sys.argv[1:]
print("ready", flush=True)
for each in Repairer(Tables(root), read_options({"url": url})).run({"floods": [(1, 10000)]}):
    assert each.reason is None, each
"""


@pytest.mark.long  # four of five processes are killed on the way
def test_an_interrupted_repair_leaves_an_archive_that_can_be_read(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Server(CONFIG, tmp_path / "server") as server:
        for first in (1, 5001):
            publish_floods(server, first, first + 4999)
        root = archive(server)
        damage(root, "floods", 9000, with_payload('"other"'))
        whole = in_log(server, "flood")
        before = archived(str(root), "floods")
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        for pause in (0.0, 0.1, *(chance.uniform(0.1, 0.4) for _ in range(2)), None):
            working = subprocess.Popen(
                [sys.executable, "-c", REPAIR, server.url, str(root)], env=environment, stdout=subprocess.PIPE
            )
            assert working.stdout is not None
            working.stdout.readline()
            if pause is not None:
                time.sleep(pause)
                working.send_signal(signal.SIGKILL)
            code = working.wait(120)
            working.stdout.close()
            assert file_with(root, "floods", 1).last == 10_000
            rows = archived(str(root), "floods")
            assert rows.equals(before) or rows.equals(whole)
        assert code == 0
        assert rows.equals(whole)


def test_wrong_usage_is_named() -> None:
    result = CliRunner().invoke(main, ["pipeline", "audit", "--url", "nowhere"])
    assert result.exit_code == 2
    assert "is not an http or https URL" in result.stderr
