"""`aviso-server pipeline …` as people run it: a real server, real Spark, each command once in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from aviso_server.lake.table import Table
from tests.harness import Server
from tests.lake.scene import FLOOD, made, ranges, write
from tests.spark.archive.keeping import SOURCES, archived, in_log
from tests.spark.scene import CONFIGURATION, publish_floods, publish_tides


def run(server: Server, *arguments: str, code: int = 0) -> str:
    """What `aviso-server pipeline` prints in this process, where it has no use for Spark."""
    with chdir(server.directory):
        done = CliRunner().invoke(main, ["pipeline", *arguments, "--config", str(server.config_file)])
    assert done.exit_code == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def run_apart(server: Server, *arguments: str) -> str:
    """What `aviso-server pipeline` prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "HOME": str(server.directory)}
    done = subprocess.run(
        [sys.executable, "-m", "aviso_server", "pipeline", *arguments, "--config", str(server.config_file)],
        cwd=server.directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.long  # each command starts Java
def test_archive_status_and_replay(tmp_path: Path) -> None:
    configuration = {**CONFIGURATION, "archive": {"enabled": False, "path": "lake", "spark": "local[2]"}}
    with Server(configuration, tmp_path / "server") as server:
        publish_floods(server, 1, 100)
        publish_tides(server, 1, 3)
        before = objects(run(server, "status", "--url", server.url, "--json"))[0]["streams"]
        assert (before["floods"]["lag"], before["floods"]["files"], before["tide"]["lag"]) == (100, 0, 3)

        *steps, summary = objects(run_apart(server, "archive", "--once", "--url", server.url, "--json"))
        assert steps == [
            {"event_type": "flood", "stream": "floods", "sequences": 100, "last": 100},
            {"event_type": "tide", "stream": "tide", "sequences": 3, "last": 3},
        ]
        assert summary["archived"] == 103
        assert archived(str(server.directory / "lake"), "floods").equals(in_log(server, "flood"))

        facts = objects(run_apart(server, "status", "--url", server.url, "--json"))[0]["streams"]["floods"]
        assert facts["log"] == {"first": 1, "last": 100}
        assert (facts["first"], facts["last"], facts["lag"], facts["files"]) == (1, 100, 0, 1)
        assert facts["event_type"] == "flood"
        shown = [each.split() for each in run(server, "status", "--url", server.url).splitlines()]
        assert shown[0] == ["event", "type", "log", "archive", "lag", "files", "bytes", "last", "error"]
        assert shown[1][:9] == ["flood", "1", "to", "100", "1", "to", "100", "0", "1"]
        listed = run(server, "status", "--offline", "--csv").splitlines()
        assert listed[0] == "event_type,log_first,log_last,archive_first,archive_last,lag,files,bytes,last_error"
        assert listed[1].startswith("flood,,,1,100,,1,")

        span = ("--from", "20", "--to", "floods@80")
        found = [
            event["sequence"]
            for event in objects(
                run_apart(server, "replay", "flood", "region=north", 'severity={"gte": 5}', *span, "--json")
            )
        ]
        assert found == [n for n in range(20, 81) if n % 2 and n % 7 + 1 >= 5]
        work = server.directory / "data" / "pipeline"
        assert not work.exists() or not any(work.iterdir()), "commands clean up behind themselves"


def test_a_replay_needs_no_spark(tmp_path: Path) -> None:
    table = Table(str(tmp_path / "lake"), FLOOD.base)
    table.commit(made(table, 1, 100), watermark=100, after=0)
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({**CONFIGURATION, "archive": {"path": str(tmp_path / "lake"), "enabled": True}}))
    times = [f"1970-01-01T00:00:00.{number:09d}Z" for number in (20 * 1_000_007, 80 * 1_000_007)]
    arguments = (
        "replay",
        "flood",
        "region=north",
        'severity={"gte": 5}',
        "--from",
        times[0],
        "--to",
        times[1],
        "--json",
    )
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "aviso_server", "pipeline", *arguments, "--config", str(file)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCES), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [event["sequence"] for event in objects(done.stdout)] == [
        n for n in range(20, 81) if n % 2 and n % 7 + 1 >= 5
    ]
    assert not [line for line in done.stderr.splitlines() if "pyspark.sql" in line or "Starting Spark" in line]


@pytest.mark.long  # each command starts Java
def test_compact_goes_all_the_way(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for first in (1, 11, 21):
        write(root, first, first + 9)
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIGURATION))
    arguments = ["pipeline", "compact", "--path", str(root), "--config", str(file), "--keep", "0", "--json"]
    done = CliRunner().invoke(main, arguments, env={"AVISOSERVER_ARCHIVE__WORK_PATH": str(tmp_path / "work")})
    assert objects(done.stdout) == [{"rewritten": {"flood": 3}, "removed": 3, "files": {"flood": 1}}], done.stderr
    assert ranges(root) == [(1, 30)]
    assert len(list((root / "flood").glob("*.parquet"))) == 1


def test_one_process_archives_at_a_time(tmp_path: Path) -> None:
    configuration = {**CONFIGURATION, "archive": {"enabled": False, "path": "lake"}}
    with Server(configuration, tmp_path / "server") as server:
        (server.directory / "lake").mkdir()
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(server.directory / "lake")], stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            said = run(server, "archive", "--once", code=1)
            assert f"the archive in lake is in use by process {holder.pid}" in said
            said = run(server, "compact", "--keep", "23", code=1)  # replays of whoever archives may need the files
            assert f"the archive in lake is in use by process {holder.pid}" in said
        finally:
            holder.kill()
            holder.communicate()
        assert "Rewrote 0 files" in run_apart(server, "compact")


HOLD = """
import sys
from contextlib import chdir
from pathlib import Path
from aviso_server.spark.archiver import Archiver
archiver = Archiver(sys.argv[1], Path(sys.argv[1]), "local")
archiver.lock()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--url", "nowhere"], "is not an http or https URL"),
        (["archive", "--interval", "0"], "--interval"),
        (["replay", "flood", "region"], "is not of the form KEY=VALUE"),
        (["archive", "--token", "a", "--user", "b:c"], "exclude each other"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    with Server(CONFIGURATION, tmp_path / "server") as server:
        url = server.url
    result = CliRunner().invoke(
        main, ["pipeline", "status", "--url", url, "--path", str(tmp_path), "--config", str(server.config_file)]
    )
    assert result.exit_code == 1
    assert f"no server answers at {url}" in result.stderr


def test_a_filter_that_means_nothing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIGURATION))
    result = CliRunner().invoke(main, ["pipeline", "replay", "flood", "colour=red", "--config", str(file)])
    assert result.exit_code == 1
    assert "colour" in result.stderr


@pytest.mark.parametrize("command", [["replay", "flood"], ["compact"], ["report"]])
@pytest.mark.parametrize("scheme", ["", "file:"])
def test_a_folder_that_is_not_there_is_named_at_once(command: list[str], scheme: str, tmp_path: Path) -> None:
    """Before Spark is started, and nothing is left behind."""
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIGURATION))
    path = f"{scheme}{tmp_path / 'nowhere'}"
    with chdir(tmp_path):
        result = CliRunner().invoke(main, ["pipeline", *command, "--path", path, "--config", str(file)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no archive in '{path}'" in result.stderr
    assert list(tmp_path.iterdir()) == [file]
