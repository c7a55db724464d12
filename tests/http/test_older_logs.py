"""A log that an older version of this server has written, with polygons as text: nobody notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aviso_server.log.sqlite.log import SqliteLog
from aviso_server.model.notification import Box, Draft
from aviso_server.model.shapes import parse_polygon, wkb
from tests.harness import Server
from tests.harness.client import JSON, body
from tests.log.scenario import opened

AREA = "( 0,0, 0,2.50, 2,2, 0,0 )"
PAIRS = [[0.0, 0.0], [0.0, 2.5], [2.0, 2.0], [0.0, 0.0]]
TOPIC = "floods.( 0,0, 0,2%2E50, 2,2, 0,0 )"


def configuration(**application: Any) -> dict[str, Any]:
    return {
        "application": {"host": "127.0.0.1", "port": 0, **application},
        "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
        "notification_schema": {
            "flood": {
                "topic": {"base": "floods", "key_order": ["polygon"]},
                "identifier": {
                    "port": {"type": "StringHandler", "required": False},
                    "polygon": {"type": "PolygonHandler", "required": False},
                },
            }
        },
    }


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The folder of a server whose log holds two notifications of an older version."""

    async def fill() -> None:
        async with opened(SqliteLog(tmp_path / "log")) as log:
            for port in ("oslo", "bergen"):
                identifier = json.dumps({"polygon": AREA, "port": port}, separators=(",", ":")).encode()
                await log.append(Draft("floods", TOPIC, identifier, b"1", Box(0, 0, 2, 2.5)))

    asyncio.run(fill())
    return tmp_path


def test_text_of_older_versions_comes_out_as_arrays(older: Path) -> None:
    with Server(configuration(), older) as server:
        server.client.publish("flood", {"port": "moss", "polygon": PAIRS}, 1)
        for wanted in ({"polygon": AREA}, {"point": "1,1.5"}, {}):
            found = server.client.replay("flood", wanted).notifications
            assert [event["data"]["identifier"] for event in found] == [
                {"polygon": PAIRS, "port": port} for port in ("oslo", "bergen", "moss")
            ]
        request = body("flood", {}, from_id="1")
        lines = server.client.answer("replay", request, (*JSON, ("Accept", "application/x-ndjson"))).body
        assert lines.count(b'"polygon":[[0.0,0.0],[0.0,2.5],[2.0,2.0],[0.0,0.0]]') == 3
        arrow = (*JSON, ("Accept", "application/vnd.apache.arrow.stream"))
        table = pa.ipc.open_stream(server.client.answer("replay", request, arrow).body).read_all()
        assert table.column("polygon").to_pylist() == [wkb(parse_polygon(AREA))] * 3
        assert {json.dumps(json.loads(each)["polygon"]) for each in table.column("identifier").to_pylist()} == {
            json.dumps(PAIRS)
        }


def test_with_text_output_it_is_the_text_that_was_sent(older: Path) -> None:
    with Server(configuration(polygon_output="text"), older) as server:
        server.client.publish("flood", {"port": "moss", "polygon": PAIRS}, 1)
        found = [event["data"]["identifier"]["polygon"] for event in server.client.replay("flood", {}).notifications]
    assert found == [AREA, AREA, "(0,0,0,2.5,2,2,0,0)"]
