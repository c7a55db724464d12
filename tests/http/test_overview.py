"""GET /api/v1/admin/overview: what it tells, and whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

import aviso_server
from tests.harness import Server
from tests.harness.tokens import SECRET, bearer, token

PATH = "/api/v1/admin/overview"
TIDE = {
    "topic": {"base": "tides", "key_order": ["port"]},
    "identifier": {"port": {"type": "StringHandler", "required": True}},
    "storage_policy": {"retention_time": "2h", "max_messages": 10, "max_size": "1Mi"},
}


def configuration(**more: Any) -> dict[str, Any]:
    return {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "notification_schema": {"tide": TIDE},
        **more,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        yield running


def test_streams_and_their_watchers(server: Server) -> None:
    client = server.client
    client.wipe_all()
    before = stream(server, "tide")["last"]
    for port in ("oslo", "kiel", "oslo"):
        client.publish("tide", {"port": port})
    with client.watch("tide", {"port": "oslo"}) as watcher:
        watcher.next()
        found = stream(server, "tide")
    assert found["stream"] == "tides"
    assert found["configured"] is True
    assert (found["first"], found["last"], found["count"]) == (before + 1, before + 3, 3)
    assert found["bytes"] > 0
    limits = {"seconds": 7200, "max_messages": 10, "max_bytes": 1048576, "newest_of_each_topic_only": False}
    assert found["retention"] == limits
    assert found["watchers"] == {"live": 1, "catching_up": 0, "backlog_bytes": 0, "furthest_behind": 0}


def test_recent_errors_newest_first(server: Server) -> None:
    for port in ("", "x" * 10):
        refused = server.client.notify("tide", {"port": port, "harbour": 1})
        assert refused.status == 400
    newest = overview(server)["recent_errors"][0]
    assert newest["level"] == "WARN"
    assert "harbour" in newest["message"]
    assert newest["request_id"] == refused.json()["request_id"]


def test_the_server_and_its_log(server: Server) -> None:
    found = overview(server)
    assert found["version"] == aviso_server.__version__
    assert found["log"] == {"kind": "sqlite", "connected": True, "waiting": 0}
    assert found["connections"] >= 1
    assert found["slowest_watchers"] == []


def test_answer_satisfies_the_description(server: Server) -> None:
    server.client.publish("tide", {"port": "oslo"})
    document = server.client.get("/api-docs/openapi.json").json()
    schema = document["paths"][PATH]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(overview(server))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    roles = {"localrealm": ["admin"]}
    auth = {"enabled": True, "mode": "trusted_proxy", "jwt_secret": SECRET, "admin_roles": roles}
    with Server(configuration(auth=auth), tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.mark.parametrize(("user", "status"), [(None, 401), ("reader-user", 403), ("admin-user", 200)])
def test_only_administrators_see_it(guarded: Server, user: str | None, status: int) -> None:
    headers = () if user is None else bearer(token(user))
    assert guarded.client.request("GET", PATH, headers=headers).status == status


def overview(server: Server) -> dict[str, Any]:
    answer = server.client.get(PATH)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def stream(server: Server, event_type: str) -> dict[str, Any]:
    (found,) = [each for each in overview(server)["streams"] if each["event_type"] == event_type]
    assert isinstance(found, dict)
    return found
