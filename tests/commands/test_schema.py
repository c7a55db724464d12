"""`aviso-server schema`, from a file and from a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from tests.commands.scripted import Script, serving
from tests.config.configurations import EVENT_TYPE

PORT = {"type": "StringHandler", "max_length": None, "required": True}
TIDE = {"payload": None, "identifier": {"port": PORT}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(EVENT_TYPE, encoding="utf-8")
    return str(path)


def test_from_a_file(file: str) -> None:
    everything = CliRunner().invoke(main, ["schema", "--config", file, "--json"])
    assert (everything.exit_code, json.loads(everything.stdout)) == (0, {"tide": TIDE})
    one = CliRunner().invoke(main, ["schema", "tide", "--config", file, "--json"])
    assert json.loads(one.stdout) == TIDE
    shown = CliRunner().invoke(main, ["schema", "--config", file])
    assert "tide (payload optional)" in shown.stdout
    assert "StringHandler" in shown.stdout


def test_from_a_server() -> None:
    body = json.dumps({"status": "success", "schema": {"tide": TIDE}, "event_types": ["tide"], "total_schemas": 1})
    script = Script([body.encode()], content_type="application/json")
    with serving(script) as url:
        result = CliRunner().invoke(main, ["schema", "--url", url + "/", "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"tide": TIDE})
    assert script.requests == [("/api/v1/schema", None)]


def test_text_of_a_server_is_not_markup() -> None:
    odd = {"payload": None, "identifier": {"[red]x": {**PORT, "description": "[bold]\x1b[31m"}}}
    body = json.dumps({"schema": {"tide": odd}}).encode()
    with serving(Script([body], content_type="application/json")) as url:
        result = CliRunner().invoke(main, ["schema", "--url", url])
    assert "[red]x" in result.stdout
    assert "[bold]" in result.stdout
    assert "\x1b[31m" not in result.stdout


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"schema": 5}'])
def test_something_else_answers(body: bytes) -> None:
    with serving(Script([body], content_type="text/html")) as url:
        result = CliRunner().invoke(main, ["schema", "--url", url])
    assert result.exit_code == 1
    assert "not an aviso server" in result.stderr


def test_unknown_event_type(file: str) -> None:
    result = CliRunner().invoke(main, ["schema", "tied", "--config", file])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "did you mean 'tide'?" in result.stderr


def test_a_broken_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("notification_schema: {tide: {}}", encoding="utf-8")
    result = CliRunner().invoke(main, ["schema", "--config", str(file)])
    assert result.exit_code == 1
    assert "notification_schema.tide.identifier" in result.stderr


def test_file_and_server_exclude_each_other(file: str) -> None:
    result = CliRunner().invoke(main, ["schema", "--config", file, "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
