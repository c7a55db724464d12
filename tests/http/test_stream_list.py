"""GET /api/v1/streams, and replays without typed columns: how the archive finds out what there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness import Server
from tests.harness.client import body
from tests.harness.tokens import SECRET, bearer, token

TIDE: dict[str, Any] = {
    "topic": {"base": "tides", "key_order": ["port"]},
    "identifier": {"port": {"type": "StringHandler", "required": True}},
}
FLOOD = {
    "topic": {"base": "flood", "key_order": ["port"]},
    "identifier": {**TIDE["identifier"], "polygon": {"type": "PolygonHandler", "required": True}},
}
CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema_strict": False,
    "notification_schema": {"tide": TIDE, "flood": FLOOD},
}
GUARDED: dict[str, Any] = {
    **CONFIG,
    "auth": {"enabled": True, "mode": "trusted_proxy", "jwt_secret": SECRET, "admin_roles": {"localrealm": ["admin"]}},
    "notification_schema": {
        "tide": {**TIDE, "auth": {"required": True, "read_roles": {"localrealm": ["reader"]}}},
        "secret": {
            **TIDE,
            "topic": {"base": "secret", "key_order": ["port"]},
            "auth": {"required": True, "read_roles": {"localrealm": ["nobody"]}},
        },
        "open": {**TIDE, "topic": {"base": "open", "key_order": ["port"]}},
    },
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(CONFIG, tmp_path) as running:
        yield running


def streams(server: Server, headers: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    answer = server.client.request("GET", "/api/v1/streams", headers=headers)
    assert answer.status == 200, answer.body
    return {each.pop("stream"): each for each in answer.json()["streams"]}


def test_every_stream_is_listed_with_what_the_log_holds(server: Server) -> None:
    assert streams(server) == {}
    for number in range(3):
        server.client.publish("tide", {"port": "oslo"}, number)
    server.client.publish("anything", {"a": "b"}, None)
    server.client.delete("/api/v1/admin/notification/tide@1")
    found = streams(server)
    assert list(found) == ["anything", "tides"]
    held = {name: found["tides"][name] for name in ("event_type", "first", "last", "count", "trimmed")}
    assert held == {"event_type": "tide", "first": 2, "last": 3, "count": 2, "trimmed": 0}
    assert (found["anything"]["event_type"], found["anything"]["last"]) == ("anything", 1)
    server.client.wipe_all()
    assert (streams(server)["tides"]["first"], streams(server)["tides"]["last"]) == (4, 3)


def test_a_stream_that_nobody_can_ask_for_any_more_is_left_out(server: Server, tmp_path: Path) -> None:
    server.client.publish("anything", {"a": "b"}, None)
    server.client.publish("tide", {"port": "oslo"}, None)
    server.stop()
    with Server({**CONFIG, "notification_schema_strict": True}, tmp_path) as strict:
        assert list(streams(strict)) == ["tides"]


def test_callers_see_the_streams_that_they_may_read(tmp_path: Path) -> None:
    with Server(GUARDED, tmp_path) as server:
        admin = (("Content-Type", "application/json"), *bearer(token("admin-user")))
        for event_type in ("tide", "secret", "open"):
            assert server.client.answer("notification", body(event_type, {"port": "x"}), admin).status == 200
        assert list(streams(server)) == ["open"]
        assert list(streams(server, bearer(token("reader-user")))) == ["open", "tides"]
        assert list(streams(server, bearer(token("admin-user")))) == ["open", "secret", "tides"]
        assert server.client.request("GET", "/api/v1/streams", headers=bearer("a.b.c")).status == 401


def test_a_minimal_replay_has_what_the_log_keeps(server: Server) -> None:
    server.client.publish("flood", {"port": "oslo", "polygon": "(0,0,0,2,2,2,0,0)"}, {"b": 1, "a": "x"})
    server.client.publish("tide", {"port": "bergen"}, None)
    headers = (
        ("Content-Type", "application/json"),
        ("Accept", "application/vnd.apache.arrow.stream"),
        ("Prefer", "handling=lenient, return=minimal"),
    )
    found = []
    for event_type in ("flood", "tide"):
        request = json.dumps(body(event_type, {}, from_id="1")).encode()
        answer = server.client.request("POST", "/api/v1/replay", request, headers)
        found.append(pa.ipc.open_stream(answer.body).read_all().replace_schema_metadata(None))
    table = pa.concat_tables(found)
    boxes = ["box_min_lat", "box_min_lon", "box_max_lat", "box_max_lon"]
    assert table.schema.names == ["sequence", "time_ns", "topic", *boxes, "identifier", "payload"]
    first, second = table.to_pylist()
    assert (first["sequence"], first["topic"], first["payload"]) == (1, "flood.oslo", '{"a":"x","b":1}')
    assert first["identifier"] == '{"polygon":[[0.0,0.0],[0.0,2.0],[2.0,2.0],[0.0,0.0]],"port":"oslo"}'
    assert ([first[name] for name in boxes], [second[name] for name in boxes]) == ([0.0, 0.0, 2.0, 2.0], [None] * 4)
