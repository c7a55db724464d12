"""`aviso-server schema` and `explain`, from a file and from servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.commands.scripted import Script, serving
from tests.config.configurations import EVENT_TYPE
from tests.harness.server import Server

SQUARE = "(10,10,10,10.5,10.5,10.5,10.5,10,10,10)"
CONFIG: dict[str, Any] = {
    "application": {"port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema": {
        "storm": {
            "identifier": {
                "name": {"type": "StringHandler", "required": True},
                "level": {"type": "IntHandler", "range": [0, 9], "required": False},
                "polygon": {"type": "PolygonHandler", "required": False},
            },
            "topic": {"base": "storm", "key_order": ["name", "level"]},
        }
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(CONFIG, tmp_path_factory.mktemp("server")) as server:
        for name, level in (("anna", 1), ("anna", 5), ("[red]bert[/red]", 7)):
            server.client.publish("storm", {"name": name, "level": level, "polygon": SQUARE})
        yield server.url


def explain(url: str, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["explain", "--url", url, *arguments], input=stdin)


def test_a_page_for_people(url: str) -> None:
    result = explain(url, "storm", "name=anna", 'level={"gte": 2}', "--notification", "storm@1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "Notifications of event type 'storm' where name is \"anna\", and level is 2 or greater."
    assert lines[1] == "  polygon may have any value"
    assert lines[2] == "Only what is published from now on."
    assert "1 notification in the last 7 days, counted in the log." in lines
    assert "storm@1 is dropped, because it is not true that level is 2 or greater." in lines
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    assert ["10", "10", "1"] in rows
    assert ["yes", 'name is "anna"', "anna"] in rows
    assert ["no", "level is 2 or greater", "1"] in rows


def test_nothing_found(url: str) -> None:
    result = explain(url, "storm", "name=nobody", "--days", "1")
    assert "0 notifications in the last day, counted in the log." in result.stdout


def test_values_are_shown_as_they_are(url: str) -> None:
    result = explain(url, "storm", "name=*", "--notification", "storm@3", "--filter", '{"level": 7}')
    assert result.exit_code == 0, result.stderr
    assert "storm@3 is kept: all of it is true." in result.stdout
    marked = explain(url, "storm", "name=x", "--notification", "storm@3")
    assert "[red]bert[/red]" in marked.stdout


def test_json(url: str) -> None:
    answer = json.loads(explain(url, "storm", "name=anna", "--days", "30", "--json").stdout)
    assert answer["matches"]["count"] == 2
    assert answer["matches"]["days"] == 30
    assert answer["meaning"]["clauses"][0]["field"] == "name"


def test_the_body_of_a_watch(url: str, tmp_path: Path) -> None:
    body = json.dumps({"event_type": "storm", "identifier": {"name": "anna"}, "from_id": "2"})
    file = tmp_path / "watch.json"
    file.write_text(body, encoding="utf-8")
    for result in (explain(url, "--file", str(file)), explain(url, "--file", "-", stdin=body)):
        assert result.exit_code == 0, result.stderr
        assert "History from sequence 2 on, then what is published." in result.stdout
        assert "2 notifications in the last 7 days" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["storm"], 1, "Required field 'name'"),
        (["storm", "name=a", "--notification", "mars@1"], 1, "'storm@' and a sequence"),
        (["wave", "a=b"], 1, "unknown event type 'wave'"),
        ([], 2, "name an EVENT_TYPE"),
        (["storm", "--file", "-"], 2, "exclude each other"),
        (["--file", "-"], 2, "not a JSON object"),
        (["storm", "name=a", "--days", "367"], 2, "--days"),
    ],
)
def test_refusals(url: str, arguments: list[str], code: int, word: str) -> None:
    result = explain(url, *arguments, stdin="[]")
    assert (result.exit_code, result.stdout) == (code, "")
    assert word in result.stderr


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
def test_something_that_is_no_server_answers(body: bytes) -> None:
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


def test_the_variable_names_the_server_unless_a_file_is_given(file: str) -> None:
    from_file = CliRunner().invoke(main, ["schema", "--config", file, "--json"], env={"AVISO_BASE_URL": "http://x"})
    assert json.loads(from_file.stdout) == {"tide": TIDE}
    body = json.dumps({"schema": {"wave": TIDE}}).encode()
    with serving(Script([body], content_type="application/json")) as url:
        asked = CliRunner().invoke(main, ["schema", "--json"], env={"AVISO_BASE_URL": url})
    assert json.loads(asked.stdout) == {"wave": TIDE}
