"""`backup` and `restore` against a server that runs and publishes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.harness import Server

CONFIG = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_backup_of_a_running_server_and_a_server_on_the_copy(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with Server(CONFIG, tmp_path / "first") as server:
        server.client.publish_many("tide", [({"n": str(number)}, number) for number in range(50)])
        result = run("backup", copy, "--path", tmp_path / "first" / "log", "--json")
        assert result.exit_code == 0, result.output
        server.client.publish("tide", {"n": "later"})
    told = json.loads(result.stdout)
    assert (told["streams"], told["notifications"], told["file"]) == ({"tide": 50}, 50, str(copy))
    restored = run("restore", copy, "--path", tmp_path / "second" / "log", "--advance", 100)
    assert restored.exit_code == 0, restored.output
    assert "50 notifications in 1 streams" in restored.stdout
    with Server(CONFIG, tmp_path / "second") as server:
        frames = server.client.replay("tide", {"n": "*"}).frames
        assert [frame.data["sequence"] for frame in frames if frame.kind == "notification"] == list(range(1, 51))
        server.client.publish("tide", {"n": "again"})
        frames = server.client.replay("tide", {"n": "again"}).frames
        assert [frame.data["sequence"] for frame in frames if frame.kind == "notification"] == [151]
        again = run("restore", copy, "--path", tmp_path / "second" / "log")
        assert again.exit_code == 1
        assert "in use" in again.stderr


def test_the_configuration_names_the_log(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"notification_backend: {{kind: sqlite, sqlite: {{path: {tmp_path / 'log'}}}}}\n")
    result = run("backup", tmp_path / "copy.sqlite", "--config", file)
    assert result.exit_code == 1
    assert f"there is no log in '{tmp_path / 'log'}'" in result.stderr


def test_a_file_that_is_no_copy(tmp_path: Path) -> None:
    file = tmp_path / "copy.sqlite"
    file.write_text("hello" * 100)
    result = run("restore", file, "--path", tmp_path / "log")
    assert result.exit_code == 1
    assert f"'{file}' is no copy of a log that can be restored: it is not an SQLite database" in result.stderr
    assert "empty log" not in result.stderr
    assert not (tmp_path / "log").exists()


def test_other_backends_have_no_copy(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("notification_backend: {kind: in_memory}\n")
    result = run("backup", tmp_path / "copy.sqlite", "--config", file)
    assert result.exit_code == 1
    assert "in_memory" in result.stderr


def test_usage() -> None:
    assert run("backup").exit_code == 2
    assert run("backup", "x", "--config", "a", "--path", "b").exit_code == 2
    assert run("restore", "x", "--advance", "-1").exit_code == 2
