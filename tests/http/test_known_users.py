"""What is counted, limited and logged by user once callers are known."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Server
from tests.harness.client import JSON, body
from tests.harness.metrics import Scrape, scrape, with_metrics
from tests.harness.tokens import SECRET, bearer, token

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "in_memory"},
    "auth": {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    },
    "notification_schema": {
        "tide": {
            "topic": {"base": "tides", "key_order": ["port"]},
            "identifier": {"port": {"type": "StringHandler", "required": True}},
            "auth": {"required": True, "read_roles": {"localrealm": ["reader"]}, "write_roles": {"localrealm": ["x"]}},
        }
    },
}
TIDE = body("tide", {"port": "x"})


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    config = with_metrics(CONFIG)
    with Server(config, tmp_path_factory.mktemp("known")) as server:
        yield server, config["metrics"]["port"]


def header(name: str) -> tuple[tuple[str, str], ...]:
    return (*JSON, *bearer(token(name)))


def test_credentials_and_rejected_publishes_are_counted(metered: tuple[Server, int]) -> None:
    server, port = metered
    before = scrape(server, port)
    api = server.client
    assert api.answer("notification", TIDE, header("admin-user")).status == 200
    assert api.answer("notification", TIDE, header("reader-user")).status == 403
    assert api.answer("notification", TIDE).status == 401
    assert api.answer("notification", TIDE, (*JSON, *bearer("a.b.c"))).status == 401
    after = scrape(server, port)

    def added(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert added("aviso_notifications_total", event_type="tide", status="success") == 1
    assert added("aviso_notifications_total", event_type="tide", status="rejected") == 2
    assert added("aviso_auth_requests_total", mode="trusted_proxy", outcome="success") == 2
    assert added("aviso_auth_requests_total", mode="trusted_proxy", outcome="unauthorized") == 1
    assert added("aviso_auth_requests_total", mode="direct") == 0
    refused = {"route": "/api/v1/notification", "method": "POST", "status_code": "401"}
    assert added("aviso_http_requests_total", **refused) == 2


def test_users_with_open_streams_are_counted_once(metered: tuple[Server, int]) -> None:
    server, port = metered

    def users() -> Scrape:
        return scrape(server, port)

    name, route = "aviso_sse_unique_users_active", "/api/v1/watch"
    with (
        server.client.open("watch", TIDE, header("reader-user")) as first,
        server.client.open("watch", TIDE, header("reader-user")) as second,
        server.client.open("watch", TIDE, header("admin-user")) as third,
    ):
        for stream in (first, second, third):
            stream.next()
        assert users().value(name, route=route) == 2
    deadline = time.monotonic() + 5
    while users().value(name, route=route):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_removed_something_is_logged(metered: tuple[Server, int]) -> None:
    server, _ = metered
    answer = server.client.request("DELETE", "/api/v1/admin/wipe/all", headers=header("admin-user"))
    assert answer.status == 200
    deadline = time.monotonic() + 5
    while True:
        lines = [json.loads(line)["attributes"] for line in server.stdout.splitlines()]
        found = [line for line in lines if line.get("event.name") == "admin.all.wipe.succeeded"]
        if found:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (found[0]["user.name"], found[0]["user.realm"]) == ("admin-user", "localrealm")


def test_the_rate_is_a_users_wherever_they_are(tmp_path: Path) -> None:
    config = {**CONFIG, "limits": {"requests_per_second": 1, "request_burst": 2}}
    with Server(config, tmp_path) as server:

        def status(name: str) -> int:
            return server.client.request("GET", "/api/v1/auth/check", headers=header(name)).status

        assert [status("reader-user") for _ in range(4)][::3] == [200, 429]
        assert status("producer-user") == 200, "another user from the same address"


def test_guessing_credentials_is_slowed_down(tmp_path: Path) -> None:
    config = {**CONFIG, "limits": {"requests_per_second": 1, "request_burst": 2}}
    with Server(config, tmp_path) as server:
        guess = bearer(token(secret="a wrong secret that is long enough to be one"))
        statuses = [server.client.request("GET", "/api/v1/auth/check", headers=guess).status for _ in range(5)]
        assert statuses[0] == 401
        assert statuses[-1] == 429
