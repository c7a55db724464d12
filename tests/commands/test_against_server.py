"""The commands that talk to a server, against a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.harness.server import Server

CONFIG = {
    "application": {"port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema": {
        "tide": {
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "level": {"type": "IntHandler", "range": [0, 9], "required": False},
            },
            "topic": {"base": "tide", "key_order": ["port", "level"]},
        }
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(CONFIG, tmp_path_factory.mktemp("server")) as server:
        for port, level in (("oslo", 1), ("oslo", 5), ("bergen", 7)):
            body = {"event_type": "tide", "identifier": {"port": port, "level": level}, "payload": {"at": level}}
            httpx.post(f"{server.url}/api/v1/notification", json=body, trust_env=False).raise_for_status()
        yield server.url


def replay(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", "tide", "--url", url, *arguments])


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


def test_schema_is_the_same_from_server_and_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")  # JSON is YAML
    from_server = CliRunner().invoke(main, ["schema", "--url", url, "--json"])
    from_file = CliRunner().invoke(main, ["schema", "--config", str(file), "--json"])
    assert from_server.exit_code == 0
    assert json.loads(from_server.stdout) == json.loads(from_file.stdout)
    assert json.loads(from_server.stdout)["tide"]["identifier"]["level"]["range"] == [0, 9]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["port=oslo"], ["tide@1", "tide@2"]),
        (["--filter", '{"port": "bergen"}'], ["tide@3"]),
        (["port=oslo", 'level={"gte": 5}'], ["tide@2"]),
        (["port=*"], ["tide@1", "tide@2", "tide@3"]),
        (["port=*", "--from", "2"], ["tide@2", "tide@3"]),
        (["port=*", "--from", "tide@2", "--to", "2"], ["tide@2"]),
        (["port=*", "--from", "2001-01-01", "--to", "2001-12-31"], []),
        (["port=*", "--from", "2001-01-01"], ["tide@1", "tide@2", "tide@3"]),
        (["port=nowhere"], []),
    ],
)
def test_replay(url: str, arguments: list[str], expected: list[str]) -> None:
    assert ids(replay(url, *arguments, "--json")) == expected


def test_lines_for_people(url: str) -> None:
    [line] = replay(url, "port=bergen").stdout.splitlines()
    name, _, fields, payload = line.split("  ")
    assert (name, fields, payload) == ("tide@3", "level=7 port=bergen", '{"at":7}')


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["ship=x"], "Unknown field 'ship'"), ([], "Required field 'port'"), (["port=a", "--from", "junk"], "from_date")],
)
def test_refusals(url: str, arguments: list[str], word: str) -> None:
    result = replay(url, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert word in result.stderr


def test_an_unknown_event_type(url: str) -> None:
    result = CliRunner().invoke(main, ["replay", "wave", "--url", url])
    assert result.exit_code == 1
    assert "unknown event type 'wave'" in result.stderr
