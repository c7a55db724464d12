"""`aviso-server pipeline report`: the page and the tables of an archive, with a Spark of its own."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.spark.insight_scene import FORECAST, archive, made_up

SOURCES = Path(__file__).parents[2] / "src"
SPARK = 300  # seconds


LINE = ["pipeline", "report", "--config", "config.yaml"]


def run_apart(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as people run it."""
    command = [sys.executable, "-m", "aviso_server", *LINE, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SPARK)


def run(folder: Path, *arguments: str) -> Result:
    """The command in this process: it has no use for Spark here."""
    with chdir(folder):
        return CliRunner().invoke(main, [*LINE, *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {
        "archive": {"enabled": True, "path": "archive", "work_path": "work", "spark": "local[2]"},
        "notification_schema": {"forecast": {"identifier": FORECAST}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


@pytest.mark.long  # Java starts for each command and for the server
def test_a_report_is_written_and_again_while_a_server_keeps_the_archive(folder: Path) -> None:
    chance = random.Random(1)
    archive(folder / "archive", "forecast", [made_up(chance, "forecast", number) for number in range(1, 81)], 1, 80)
    done = run_apart(folder, "--output", "page.html", "--tables", "tables", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["output"], found["fresh"], found["counted"]) == ("page.html", True, {"forecast": 80})
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "80 notifications from" in page
    assert "Delay since date, time and step" in page
    assert sum(pq.read_table(folder / "tables" / "hours.parquet")["count"].to_pylist()) == 80
    assert list((folder / "work").iterdir()) == []
    archive(folder / "archive", "forecast", [], 81, 90)
    with (folder / "archive" / "_lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        again = run(folder, "--days", "1", "--output", "day.html")
    assert again.exit_code == 0, again.stderr
    assert "The archive is kept by a server" in again.stdout
    assert "Up to sequence 80." in (folder / "day.html").read_text(encoding="utf-8")


def test_nothing_to_report_is_said(folder: Path) -> None:
    (folder / "archive").mkdir()
    with (folder / "archive" / "_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run(folder)
    assert done.exit_code == 1
    assert "there is nothing to report: the archive in archive has no tables of insight" in done.stderr
    assert not (folder / "report.html").exists()
