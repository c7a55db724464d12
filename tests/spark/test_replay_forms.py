"""Replays as Arrow and as lines of JSON: the same notifications as in events, and no doubt about their end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aviso_server.model.times import event_time
from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.spark.scene import CONFIGURATION, publish_floods

ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as running:
        publish_floods(running, 1, 600)
        yield running


def replay(server: Server, accept: str | None, lenient: bool = True, **members: Any) -> tuple[int, str | None, bytes]:
    headers = [("Accept", accept)] if accept is not None else []
    headers += [("Prefer", "handling=lenient")] if lenient else []
    body = {"event_type": "flood", "identifier": {}, "from_id": "1", **members}
    answer = server.client.request("POST", "/api/v1/replay", json.dumps(body).encode(), headers)
    return answer.status, answer.header("content-type"), answer.body


def arrow(body: bytes) -> tuple[dict[bytes, bytes], pa.Table, dict[bytes, bytes]]:
    """The metadata of an Arrow stream, its rows, and the metadata of its last batch."""
    reader = pa.ipc.open_stream(body)
    batches, ending = [], {}
    while True:
        try:
            batch, words = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        batches.append(batch)
        ending = dict((words or {}).items())
    return reader.schema.metadata, pa.Table.from_batches(batches, reader.schema), ending


def events(body: bytes) -> list[dict[str, Any]]:
    """The CloudEvents of an event stream."""
    frames = [frame.split(b"\n", 1) for frame in body.split(b"\n\n") if frame]
    return [json.loads(data.removeprefix(b"data: ")) for name, data in frames if name == b"event: replay"]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, EVENTS),
        ("*/*", EVENTS),
        ("", EVENTS),
        ("application/*", EVENTS),
        ("image/png", EVENTS),
        (EVENTS, EVENTS),
        (ARROW, ARROW),
        (LINES, LINES),
        (ARROW.upper(), ARROW),
        (f"{LINES};charset=utf-8", LINES),
        (f"{ARROW};q=0", EVENTS),
        (f"{ARROW};q=0.5, {LINES};q=0.6", LINES),
        (f"{ARROW};q=0.5, {EVENTS};q=0.6", EVENTS),
        (f"{ARROW}, {EVENTS}", EVENTS),
        (f"{LINES}, */*", LINES),
        (f"{LINES};q=0.3, */*;q=0.8", EVENTS),
        (f"{LINES};q=nonsense", EVENTS),
    ],
)
def test_the_form_follows_the_accept_header(server: Server, accept: str | None, expected: str) -> None:
    status, content_type, _ = replay(server, accept, from_id="600")
    assert (status, content_type) == (200, expected)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"from_id": "17", "to_id": "333"},
        {"identifier": {"severity": {"between": [3, 5]}, "region": "north"}},
        {"identifier": {"polygon": "(1,1,1,5,5,5,5,1,1,1)", "depth": {"lt": 20}}},
        {"identifier": {"polygon": "(5,5,5,6,6,6,6,5,5,5)"}},
        {"from_id": "601"},
    ],
    ids=["everything", "a part", "constraints", "an area", "another area", "the future"],
)
def test_all_forms_hold_the_same_notifications(server: Server, members: dict[str, Any]) -> None:
    expected = events(replay(server, EVENTS, **members)[2])
    *lines, last = [json.loads(line) for line in replay(server, LINES, **members)[2].splitlines()]
    assert lines == expected
    assert last["type"] == "replay_completed"
    _, table, ending = arrow(replay(server, ARROW, **members)[2])
    assert ending[b"aviso.ending"] == b"replay_completed"
    rows = table.to_pylist()
    assert [row["sequence"] for row in rows] == [event["sequence"] for event in expected]
    assert [json.loads(row["identifier"]) for row in rows] == [event["data"]["identifier"] for event in expected]
    assert [event_time(row["time_ns"]) for row in rows] == [event["time"] for event in expected]
    assert [json.loads(row["payload"]) for row in rows] == [event["data"]["payload"] for event in expected]


def test_columns_have_the_types_and_values_of_the_fields(server: Server) -> None:
    _, table, _ = arrow(replay(server, ARROW, from_id="9", to_id="9")[2])
    assert {field.name: str(field.type) for field in table.schema} == {
        "sequence": "int64",
        "time": "timestamp[us, tz=UTC]",
        "event_type": "string",
        "topic": "string",
        "region": "string",
        "identifier_time": "string",
        "date": "string",
        "severity": "int64",
        "depth": "double",
        "polygon": "binary",
        "box_min_lat": "double",
        "box_min_lon": "double",
        "box_max_lat": "double",
        "box_max_lon": "double",
        "identifier": "string",
        "payload": "string",
        "time_ns": "int64",
    }
    (row,) = table.drop_columns(["time", "time_ns", "polygon", "identifier"]).to_pylist()
    assert row == {
        "sequence": 9,
        "event_type": "flood",
        "topic": "floods.north.1200.3",
        "region": "north",
        "identifier_time": "1200",
        "date": "20250706",
        "severity": 3,
        "depth": 2.25,
        "box_min_lat": 0.0,
        "box_min_lon": 0.0,
        "box_max_lat": 2.0,
        "box_max_lon": 2.0,
        "payload": '{"n":9}',
    }


def test_the_schema_says_what_the_replay_covers(server: Server) -> None:
    words, _, _ = arrow(replay(server, ARROW, from_id="0", to_id="99999")[2])
    found = {key.decode().removeprefix("aviso."): value.decode() for key, value in words.items()}
    del found["request_id"]
    assert found == {
        "event_type": "flood",
        "start_sequence": "1",
        "end_sequence": "600",
        "first_sequence": "1",
        "last_sequence": "600",
        "trimmed_sequence": "0",
        "equals": "{}",
    }


def test_the_schema_says_which_texts_fields_must_have(server: Server) -> None:
    identifier = {"region": "NORTH", "time": "12", "severity": {"gte": 2}}
    words, _, _ = arrow(replay(server, ARROW, identifier=identifier)[2])
    assert json.loads(words[b"aviso.equals"]) == {"region": "north", "time": "1200"}


@pytest.mark.parametrize("accept", [ARROW, LINES])
def test_the_checks_are_those_of_events(server: Server, accept: str) -> None:
    for members in ({"from_id": "x"}, {"to_id": "0"}, {"identifier": {"bogus": 1}}, {"event_type": 5}):
        status, content_type, body = replay(server, accept, **members)
        assert (status, content_type) == (400, "application/json")
        assert json.loads(body)["code"] == json.loads(replay(server, EVENTS, **members)[2])["code"]


@pytest.mark.parametrize("accept", [ARROW, LINES, EVENTS])
def test_required_fields_may_be_left_out_only_by_those_who_ask_for_it(server: Server, accept: str) -> None:
    status, _, body = replay(server, accept, lenient=False)
    assert status == 400
    assert "Required field 'region' is missing" in json.loads(body)["message"]
    assert replay(server, accept, lenient=True)[0] == 200


def test_the_cap_is_told(tmp_path: Path) -> None:
    capped = {**CONFIGURATION, "watch_endpoint": {"max_historical_notifications": 7}}
    with Server(capped, tmp_path) as server:
        publish_floods(server, 1, 9)
        _, table, ending = arrow(replay(server, ARROW)[2])
        assert table.num_rows == 7
        assert ending[b"aviso.ending"] == b"notification_replay_limit_reached"
        *lines, last = replay(server, LINES)[2].splitlines()
        assert len(lines) == 7
        assert json.loads(last)["type"] == "notification_replay_limit_reached"


def test_schema_less_events_have_the_common_columns(server: Server) -> None:
    server.client.publish("anything", {"place": "oslo", "level": 3}, [1])
    _, table, _ = arrow(replay(server, ARROW, event_type="anything")[2])
    assert table.schema.names == ["sequence", "time", "event_type", "topic", "identifier", "payload", "time_ns"]
    (row,) = table.to_pylist()
    assert (row["identifier"], row["payload"]) == ('{"level":"3","place":"oslo"}', "[1]")
    assert row["topic"] == "anything.3.oslo"


@pytest.mark.parametrize("accept", [ARROW, LINES])
def test_a_replay_that_the_server_gives_up_is_a_broken_transfer(tmp_path: Path, accept: str) -> None:
    with Server(CONFIGURATION, tmp_path) as server:
        payload = "x" * 60_000
        server.client.publish_many("tide", [({"port": "a", "severity": "b", "version": "1"}, payload)] * 400)
        connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
        body = json.dumps({"event_type": "tide", "identifier": {"port": "*"}, "from_id": "1"})
        connection.request("POST", "/api/v1/replay", body, {"Accept": accept})
        answer = connection.getresponse()
        assert len(answer.read(1000)) == 1000  # the rest does not fit into the buffers between us
        server.stop()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        connection.close()
