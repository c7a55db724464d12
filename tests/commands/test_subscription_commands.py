"""`aviso-server subscription` against a running server and a real receiver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.harness import Server
from tests.subscriptions.receiver import Got, Receiver, Reply, until
from tests.subscriptions.scene import configuration, publish


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration("in_memory"), tmp_path_factory.mktemp("command")) as running:
        yield running


def run(server: Server, *arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["subscription", *arguments, "--url", server.url])
    assert result.exit_code == status, result.output
    return result


def as_json(server: Server, *arguments: str) -> Any:
    return json.loads(run(server, *arguments, "--json").stdout)


def test_from_create_to_delete(server: Server) -> None:
    def answer(got: Got) -> Reply:
        (event,) = got.events
        bad = event["type"].endswith("wave") and event["data"]["payload"]["height"] == 2 and not healed
        return Reply(500 if bad else 200, body=b"thanks")

    healed = False
    with Receiver(answer) as receiver:
        options = ("--push", receiver.url, "--park", "--max-attempts", "2", "--header", "x-mine=yes")
        made = run(server, "create", "mine", "wave", "sea=x", 'height={"lt": 9}', *options).stdout
        assert "mine, which is active" in made
        assert "whsec_" in made
        assert "The sink answered 200: thanks" in run(server, "test", "mine").stdout
        publish(server.client, "x", 1, 2, 3, 10)
        until(lambda: as_json(server, "show", "mine")["delivered"] == 2)
        assert receiver.posts[1].headers["x-mine"] == "yes"
        shown = run(server, "show", "mine").stdout
        assert "thanks" in shown
        assert '{"sea":"x","height":{"lt":9}}' in shown
        (listed,) = as_json(server, "list")
        assert (listed["name"], listed["dead_letters"], listed["lag"]) == ("mine", 1, 0)
        assert "mine" in run(server, "list").stdout
        (letter,) = as_json(server, "dead", "mine")
        assert (letter["status"], letter["event"]["data"]["payload"]) == (500, {"height": 2})
        assert str(letter["sequence"]) in run(server, "dead", "mine").stdout
        healed = True
        assert "1 dead letter on the way" in run(server, "retry", "mine", str(letter["sequence"])).stdout
        until(lambda: as_json(server, "dead", "mine") == [])
        assert "mine is paused" in run(server, "pause", "mine").stdout
        assert "mine is active" in run(server, "resume", "mine").stdout
        assert "mine is gone" in run(server, "delete", "mine").stdout
        assert "no such subscription" in run(server, "show", "mine", status=1).stderr


def test_the_list_follows_all_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviso_server.commands.subscription_commands._PAGE", 2)
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        run(server, "create", name, "wave")
    assert [each["name"] for each in as_json(server, "list")] == names
    for name in names:
        run(server, "delete", name)


def test_what_is_refused(server: Server) -> None:
    refused = run(server, "create", "bad", "wave", "depth=1", status=1)
    assert "depth" in refused.stderr
    assert "NAME=VALUE" in run(server, "create", "bad", "wave", "--header", "x", status=2).stderr
    dead = run(server, "create", "bad", "wave", "--push", "http://127.0.0.1:9/")
    assert "which is unconfirmed" in dead.stdout
    assert "'resume' asks it once more" in run(server, "test", "bad", status=1).stderr
    run(server, "delete", "bad")


def test_a_sink_that_hangs_up(server: Server) -> None:
    with Receiver(lambda got: Reply(None)) as receiver:
        run(server, "create", "mute", "wave", "--push", receiver.url)
        assert "The sink answered nothing" in run(server, "test", "mute", status=1).stdout
        run(server, "delete", "mute")
