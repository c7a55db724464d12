"""`aviso-server pipeline lateness`, as a person would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from aviso_server.cli import main
from aviso_server.model.lateness import DAY, LATENESS_FOLDER, day_text, decode, file_name
from aviso_server.model.notification import Notification
from tests.model.event_types import event_type
from tests.spark.archive.keeping import SOURCES
from tests.spark.stored import store

FIELDS = {"port": "StringHandler", "date": "DateHandler"}
TIDE = event_type("tide", FIELDS, base="tides", order=["port", "date"])


LINE = ["pipeline", "lateness", "--config", "config.yaml"]


def run_apart(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as people run it."""
    command = [sys.executable, "-m", "aviso_server", *LINE, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def run(folder: Path, *arguments: str) -> Result:
    """The command in this process: it has no use for Spark here."""
    with chdir(folder):
        return CliRunner().invoke(main, [*LINE, *arguments])


def configure(folder: Path, enabled: bool) -> None:
    identifier = {name: {"type": kind, "required": False} for name, kind in FIELDS.items()}
    topic = {"base": "tides", "key_order": ["port", "date"]}
    tide = {"identifier": identifier, "topic": topic, "lateness": {"enabled": enabled}}
    config = {
        "archive": {"path": "archive", "work_path": "work", "spark": "local[2]"},
        "notification_schema": {"tide": tide},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.long  # each command starts Java
def test_learn_and_show(tmp_path: Path) -> None:
    configure(tmp_path, enabled=True)
    today = int(time.time()) // DAY
    notifications = []
    for sequence, day in enumerate(range(today - 20, today), 1):
        draft = TIDE.check({"port": "oslo", "date": day_text(day)}, None)
        second = day * DAY + 6 * 3600
        notifications.append(Notification(sequence, second * 10**9, draft.topic, draft.identifier, draft.payload))
    store(tmp_path / "archive", TIDE, notifications)
    found = run_apart(tmp_path, "--json")
    assert found.returncode == 0, found.stderr
    [rhythm] = json.loads(found.stdout)["event_types"]["tide"]["rhythms"]
    assert (rhythm["combination"], rhythm["expected"], rhythm["overdue"]) == ("port=oslo", 21_600, 23_400)
    assert rhythm["weekdays"] == ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    assert len(decode((tmp_path / "archive" / LATENESS_FOLDER / file_name("tide")).read_bytes()).rhythms) == 1
    shown = run(tmp_path, "--show")
    assert shown.exit_code == 0, shown.stderr
    assert "port=oslo" in shown.stdout
    assert "every day" in shown.stdout
    assert "06:00" in shown.stdout


def test_nothing_to_learn_is_said(tmp_path: Path) -> None:
    configure(tmp_path, enabled=False)
    found = run(tmp_path)
    assert found.exit_code == 1
    assert "no event type has lateness.enabled: true" in found.stderr
