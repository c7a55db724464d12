"""What is counted, limited and logged by user once callers are known."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Server
from tests.harness.client import JSON, body, encode
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
    deadline = time.monotonic() + 60
    while users().value(name, route=route):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def records_of(server: Server, request_id: str | None, event: str) -> list[dict[str, Any]]:
    """The attributes of all records of a request, once the one of this event is there."""
    deadline = time.monotonic() + 60
    while True:
        lines = [json.loads(line)["attributes"] for line in server.stdout.splitlines()]
        found = [line for line in lines if line.get("request_id") == request_id]
        if any(line["event.name"] == event for line in found):
            return found
        assert time.monotonic() < deadline, f"no record {event} of {request_id}"
        time.sleep(0.02)


WIPE = "/api/v1/admin/wipe/all"
REPLAY = body("tide", {"port": "x"}, from_id="1")


@pytest.mark.parametrize(
    ("method", "path", "sent", "name", "event"),
    [
        ("DELETE", WIPE, None, "admin-user", "admin.all.wipe.succeeded"),
        ("DELETE", WIPE, None, "reader-user", "auth.middleware.request.denied"),
        ("DELETE", WIPE, None, None, "auth.middleware.request.denied"),
        ("POST", "/api/v1/notification", TIDE, "admin-user", "api.notification.processed"),
        ("POST", "/api/v1/notification", TIDE, "reader-user", "auth.middleware.request.denied"),
        ("POST", "/api/v1/notification", b"{", None, "api.request.parse.failed"),
        ("POST", "/api/v1/replay", REPLAY, "reader-user", "api.replay.stream.established"),
        ("POST", "/api/v1/replay", TIDE, "reader-user", "api.request.validation.failed"),
        ("POST", "/api/v1/watch", TIDE, None, "auth.middleware.request.denied"),
    ],
)
def test_who_asked_is_in_every_record_of_a_request(
    metered: tuple[Server, int], method: str, path: str, sent: Any, name: str | None, event: str
) -> None:
    server, _ = metered
    headers = JSON if name is None else header(name)
    answer = server.client.request(method, path, None if sent is None else encode(sent), headers)
    found = records_of(server, answer.header("x-request-id"), event)
    expected = ("anonymous", "none") if name is None else (name, "localrealm")
    assert {(line["username"], line["auth_realm"]) for line in found} == {expected}


def test_who_watches_is_in_the_record(metered: tuple[Server, int]) -> None:
    server, _ = metered
    with server.client.open("watch", TIDE, header("reader-user")) as stream:
        request_id = stream.next().data["request_id"]
        [line] = records_of(server, request_id, "api.watch.stream.established")
    assert (line["username"], line["auth_realm"]) == ("reader-user", "localrealm")


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
