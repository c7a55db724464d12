"""`aviso-server check`, `version` and `serve` with a configuration that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aviso_server import __version__
from aviso_server.cli import main
from tests.config.configurations import EVENT_TYPE

EXAMPLE = Path(__file__).parents[2] / "examples" / "config.yaml"


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AVISOSERVER_CONFIG_FILE", raising=False)


def written(folder: Path, text: str) -> str:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_example_is_fit_to_start() -> None:
    result = CliRunner().invoke(main, ["check", str(EXAMPLE)])
    assert result.exit_code == 0
    assert result.stdout.startswith("Fit to start")
    assert "warning" not in result.stdout


def test_no_configuration_is_fit_to_start() -> None:
    assert CliRunner().invoke(main, ["check"]).exit_code == 0


def test_all_problems_and_warnings(tmp_path: Path) -> None:
    file = written(tmp_path, "application: {port: x, hosts: a}\nwatch_endpoint: {replay_batch_size: 0}\n")
    result = CliRunner().invoke(main, ["check", file], env={"AVISOSERVER_LIMITS__MAX_CONNECTIONS": "0"})
    assert result.exit_code == 1
    assert f"problem: {file}:1: application.port: " in result.stdout
    assert f"problem: {file}:2: watch_endpoint.replay_batch_size: " in result.stdout
    assert "problem: AVISOSERVER_LIMITS__MAX_CONNECTIONS: limits.max_connections: " in result.stdout
    assert f"warning: {file}:1: application.hosts: " in result.stdout
    assert "did you mean application.host?" in result.stdout


def test_warnings_alone_do_not_fail(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", written(tmp_path, "applicaton: {port: 1}\n")])
    assert result.exit_code == 0
    assert "warning:" in result.stdout


def test_strict_fails_on_warnings(tmp_path: Path) -> None:
    file = written(tmp_path, "archiv: {enabled: true}\n")
    result = CliRunner().invoke(main, ["check", file, "--strict"])
    assert result.exit_code == 1
    assert f"warning: {file}:1: archiv: unknown key, ignored; did you mean archive?" in result.stdout
    assert result.stdout.endswith("Not usable: 1 warning, and --strict allows none.\n")
    assert json.loads(CliRunner().invoke(main, ["check", file, "--strict", "--json"]).stdout)["ok"] is False
    assert json.loads(CliRunner().invoke(main, ["check", file, "--json"]).stdout)["ok"] is True
    assert CliRunner().invoke(main, ["check", str(EXAMPLE), "--strict"]).exit_code == 0


def test_a_log_level_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    file, environ = written(tmp_path, EVENT_TYPE), {"RUST_LOG": "loud"}
    assert "warning: RUST_LOG: " in CliRunner().invoke(main, ["check", file], env=environ).stdout
    assert CliRunner().invoke(main, ["check", file, "--strict"], env=environ).exit_code == 1


@pytest.mark.parametrize(("length", "warned"), [(31, True), (32, False)])
def test_a_short_secret_is_a_warning(length: int, warned: bool, tmp_path: Path) -> None:
    auth = {"enabled": True, "mode": "trusted_proxy", "admin_roles": {"r": ["admin"]}, "jwt_secret": "s" * length}
    file = written(tmp_path, json.dumps({"auth": auth}))
    result = CliRunner().invoke(main, ["check", file])
    assert result.exit_code == 0
    assert ("auth.jwt_secret: is only 31 bytes long and could be guessed" in result.stdout) is warned
    assert "ssss" not in result.stdout
    assert CliRunner().invoke(main, ["check", file, "--strict"]).exit_code == int(warned)


def test_json(tmp_path: Path) -> None:
    file = written(tmp_path, "notification_backend: {kind: tape}\nx: 1\n")
    result = CliRunner().invoke(main, ["check", file, "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    [problem] = report["problems"]
    assert problem["key"] == "notification_backend.kind"
    assert problem["source"] == f"{file}:1"
    assert problem["accepted"] == "sqlite, in_memory, jetstream"
    assert [warning["key"] for warning in report["warnings"]] == ["x"]


def test_json_of_a_good_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", written(tmp_path, EVENT_TYPE), "--json"])
    assert json.loads(result.stdout) == {"ok": True, "problems": [], "warnings": []}


def test_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(main, ["check", "nowhere.yaml"])
    assert result.exit_code == 1
    assert "problem: nowhere.yaml: there is no such file (accepted: the path of a YAML file)\n" in result.stdout
    result = CliRunner().invoke(main, ["check"], env={"AVISOSERVER_CONFIG_FILE": "nowhere.yaml"})
    assert "problem: AVISOSERVER_CONFIG_FILE: nowhere.yaml: there is no such file (" in result.stdout
    result = CliRunner().invoke(main, ["check"], env={"AVISOSERVER_CONFIG_FILE": " "})
    assert result.stdout.count("AVISOSERVER_CONFIG_FILE") == 1
    result = CliRunner().invoke(main, ["check", "."])
    assert "problem: .: is a folder, not a file (" in result.stdout


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "configuration" / "config.yaml").mkdir(parents=True)
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 1
    assert "problem: configuration/config.yaml: is a folder, not a file (" in result.stdout


def test_serve_lists_every_problem_and_starts_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, "application: {port: x}\nnotification_backend: {kind: tape}\n")
    ready = tmp_path / "ready.json"
    result = CliRunner().invoke(main, ["serve", "--config", file, "--ready-file", str(ready)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "2 problems" in result.stderr
    assert "application.port" in result.stderr
    assert "notification_backend.kind" in result.stderr
    assert not ready.exists()
    assert not (tmp_path / "data").exists()


def test_help() -> None:
    for arguments in ([], ["serve"], ["pipeline"], ["pipeline", "replay"]):
        asked = CliRunner().invoke(main, ["help", *arguments])
        assert asked.exit_code == 0
        assert asked.stdout == CliRunner().invoke(main, [*arguments, "--help"]).stdout
    assert CliRunner().invoke(main, ["help", "serve", "nobody"]).exit_code == 2
    assert "No such command 'nobody'" in CliRunner().invoke(main, ["help", "nobody"]).stderr


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"aviso-server {__version__}\n"
    assert CliRunner().invoke(main, ["version"]).stdout == f"aviso-server {__version__}\n"
    assert json.loads(CliRunner().invoke(main, ["version", "--json"]).stdout)["version"] == __version__


@pytest.mark.parametrize(
    "arguments", [["nobody"], ["check", "--nobody"], ["check", "a", "b"], ["replay"], ["version", "x"]]
)
def test_wrong_usage_is_two(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2
