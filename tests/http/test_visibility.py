"""Who may know that a stream exists: every place that lists or counts streams gives the same answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import Server
from tests.harness.client import JSON, body
from tests.harness.tokens import bearer, token
from tests.http.test_insight import CONFIG, TABLES, without_java
from tests.insight.handmade import write

STREAMS = {"tide": "tides", "secret": "secrets", "partial": "partials"}
VISIBLE = {
    None: {"tides"},
    "producer-user": {"tides"},
    "reader-user": {"tides", "secrets"},  # ECPDS shows a reader some destinations, and a list is about all of them
    "admin-user": {"tides", "secrets", "partials"},
}


def verdict(event_type: str) -> dict[str, Any]:
    return {"event_type": event_type, "verdict": "clean", "defects": 0, "acknowledged": 1, "lag": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one notification in each stream, an audit and insight of them all."""
    folder = tmp_path_factory.mktemp("server")
    for name, stream in STREAMS.items():
        write(folder / "archive", stream, TABLES, name)
    (folder / "archive" / "_audit").mkdir()
    audit = {"at": "2026-07-18T12:00:00Z", "verdict": "clean", "seconds": 1.0}
    audited = {stream: verdict(name) for name, stream in STREAMS.items()}
    (folder / "archive" / "_audit" / "verdict.json").write_text(json.dumps({**audit, "streams": audited}))
    with Server(CONFIG, folder, without_java(folder)) as running:
        for name in STREAMS:
            answer = running.client.answer("notification", body(name, {"port": "oslo"}), (*JSON, *of("admin-user")))
            assert answer.status == 200
        yield running


def of(user: str | None) -> tuple[tuple[str, str], ...]:
    return () if user is None else bearer(token(user))


def asked(server: Server, path: str, user: str | None) -> Any:
    answer = server.client.request("GET", path, headers=of(user))
    assert answer.status == 200, answer.body
    return answer.json()


def listed(server: Server, user: str | None) -> set[str]:
    return {each["stream"] for each in asked(server, "/api/v1/streams", user)["streams"]}


def insights(server: Server, user: str | None) -> set[str]:
    return {STREAMS[each["event_type"]] for each in asked(server, "/api/v1/insight", user)["event_types"]}


@pytest.mark.parametrize("user", VISIBLE)
@pytest.mark.parametrize("place", [listed, insights])
def test_lists_show_what_the_caller_may_know(
    server: Server, place: Callable[[Server, str | None], set[str]], user: str | None
) -> None:
    assert place(server, user) & set(STREAMS.values()) == VISIBLE[user]


@pytest.mark.parametrize("user", VISIBLE)
def test_readiness_names_only_what_everybody_may_know(server: Server, user: str | None) -> None:
    """Whoever asks: the route looks at no credentials."""
    archive = asked(server, "/ready", user)["archive"]
    assert {stream: each["event_type"] for stream, each in archive["streams"].items()} == {"tides": "tide"}
    assert set(archive["audit"]["streams"]) == {"tides"}
    for name, stream in STREAMS.items():
        assert name == "tide" or (name not in json.dumps(archive) and stream not in json.dumps(archive))


def test_administrators_see_everything_in_the_overview(server: Server) -> None:
    overview = asked(server, "/api/v1/admin/overview", "admin-user")
    everything = VISIBLE["admin-user"]
    assert {each["stream"] for each in overview["streams"]} >= everything
    assert set(overview["archive"]["streams"]) == set(overview["archive"]["audit"]["streams"]) == everything
    assert overview["audit"] == overview["archive"]["audit"]


def test_why_there_is_no_archive_is_for_administrators(server: Server) -> None:
    deadline = time.monotonic() + 60
    while (archive := asked(server, "/ready", None)["archive"])["job"] != "waiting":
        assert time.monotonic() < deadline, archive
        time.sleep(0.1)
    assert archive["reason"] == "administrators find the reason in GET /api/v1/admin/overview"
    assert "Java" in asked(server, "/api/v1/admin/overview", "admin-user")["archive"]["reason"]
