"""The cases of releases after 0.7.1 that this server takes part in."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conformance.configuration import read
from tests.conformance.conftest import Launch
from tests.conformance.expectations import INR, IRR, IWR, REFUSALS, assert_refused, payloads, steps
from tests.conformance.samples import DISSEMINATION, MARS, POLYGON, SQ, P, Q, but
from tests.harness import Client
from tests.harness.client import ABSENT, JSON, body

OD = {"class": "od"}
FOO = {**OD, "destination": "FOO"}


def test_case_n01_ready(api: Client) -> None:
    response = api.get("/ready")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    assert response.json() == {"status": "ready", "backend_connected": True}
    assert api.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("name", ["dissemination", "DISS", "diss", "Dissemination"])
def test_case_n02_wipe(api: Client, name: str) -> None:
    api.publish("dissemination", DISSEMINATION, "x")
    api.publish("mars", MARS)
    response = api.delete("/api/v1/admin/wipe/stream", {"stream_name": name})
    assert response.status == 200
    assert name in response.json()["message"]
    assert api.replay("dissemination", FOO).notifications == []
    assert len(api.replay("mars", OD).notifications) == 1


def test_case_n02_unknown(api: Client) -> None:
    response = api.delete("/api/v1/admin/wipe/stream", {"stream_name": "nope"})
    assert response.status == 404
    assert response.json()["success"] is False
    message = response.json()["message"]
    assert message.startswith("Stream not found: nope. Known event types: ")
    known = message.partition("types: ")[2].split(", ")
    assert known == sorted(api.get("/api/v1/schema").json()["schema"])


def test_case_n02_twice(api: Client) -> None:
    """A script may be run again: a known stream that holds nothing is no mistake."""
    api.publish("dissemination", DISSEMINATION, "x")
    for removed in (1, 0):
        response = api.delete("/api/v1/admin/wipe/stream", {"stream_name": "dissemination"})
        assert response.status == 200
        assert f"{removed} notifications removed" in response.json()["message"]


def test_case_n02_without_schemas(launch: Launch) -> None:
    client = launch(without=["notification_schema"]).client
    response = client.delete("/api/v1/admin/wipe/stream", {"stream_name": "nope"})
    assert (response.status, response.json()["message"]) == (404, "Stream not found: nope")


@pytest.fixture(scope="module")
def cloud_server(launch: Launch) -> Client:
    return launch(read("clouds")).client


@pytest.fixture
def clouds(cloud_server: Client) -> Client:
    """A server with event types that have point clouds, empty."""
    cloud_server.wipe_all()
    return cloud_server


def publish_cloud(client: Client, *clouds: Any, event_type: str = "cloud") -> None:
    for number, cloud in enumerate(clouds):
        client.publish(event_type, {"network": "synop", "point_cloud": cloud}, number)


def test_case_n03_clouds(clouds: Client) -> None:
    publish_cloud(clouds, [[1, 1], [5, 5]], [[0, 1]], [[8.5, 8.5]])
    stream = clouds.replay("cloud", {"polygon": SQ})
    assert payloads(stream) == [0, 1]
    assert stream.notifications[0]["data"]["identifier"] == {"network": "synop", "point_cloud": [[1, 1], [5, 5]]}
    assert payloads(clouds.replay("cloud", {"polygon": "(8,8,8,9,9,9,9,8,8,8)"})) == [2]
    assert payloads(clouds.replay("cloud", {"polygon": [[8, 8], [8, 9], [9, 9], [9, 8], [8, 8]]})) == [2]
    assert payloads(clouds.replay("cloud", {"polygon": SQ, "network": "metar"})) == []


def test_case_n03_order_and_duplicates_are_kept(clouds: Client) -> None:
    cloud = [[1.5, 1.25], [-90, 180], [1.5, 1.25], [0, 0]]
    publish_cloud(clouds, cloud)
    (event,) = clouds.replay("cloud", {"polygon": SQ}).notifications
    assert event["data"]["identifier"]["point_cloud"] == cloud


def test_case_n03_live(clouds: Client) -> None:
    with clouds.watch("cloud", {"polygon": SQ}) as stream:
        assert stream.next().data["topic"] == "cloud.*"
        publish_cloud(clouds, [[3, 3]], [[1, 1]])
        assert stream.notification()["data"]["payload"] == 1


def test_case_n03_without_a_polygon(clouds: Client) -> None:
    assert_refused(clouds.answer("replay", body("cloud", {}, from_id="1")), IRR)
    assert_refused(clouds.answer("watch", body("cloud", {})), IWR)
    publish_cloud(clouds, [[1, 1]], [[5, 5]], event_type="cloud_optional")
    assert payloads(clouds.replay("cloud_optional", {})) == [0, 1]
    assert payloads(clouds.replay("cloud_optional", {"polygon": SQ})) == [0]


LARGE = [[12.3456789 + number / 1e7, -12.3456789] for number in range(3000)]
BAD_CLOUDS: dict[str, tuple[Any, str]] = {
    "empty": ([], "field 'point_cloud' point cloud contains 0 points"),
    "text": ("1,1", "field 'point_cloud' must be an array"),
    "text of an array": ("[[1,1]]", "field 'point_cloud'"),
    "latitude": ([[91, 0]], "field 'point_cloud' point 0 is invalid"),
    "longitude": ([[0, -180.5]], "field 'point_cloud'"),
    "three numbers": ([[1, 2, 3]], "field 'point_cloud'"),
    "texts": ([["1", "2"]], "field 'point_cloud'"),
    "booleans": ([[True, False]], "field 'point_cloud'"),
    "not pairs": ([1, 2], "field 'point_cloud'"),
    "null": (None, "'point_cloud'"),
    "object": ({"eq": [[1, 1]]}, "'point_cloud'"),
    "missing": (ABSENT, "Required field 'point_cloud'"),
    "10001 points": ([[1, 1]] * 10_001, "field 'point_cloud' point cloud contains 10001 points, maximum is 10000"),
    "count before the points": ([[91, 0]] * 10_001, "point cloud contains 10001 points, maximum is 10000"),
    "too many bytes": (LARGE, "bytes, maximum is 61440 bytes"),
}


@pytest.mark.parametrize(("cloud", "words"), BAD_CLOUDS.values(), ids=BAD_CLOUDS)
def test_case_n04_bad_clouds(clouds: Client, cloud: Any, words: str) -> None:
    identifier = {"network": "synop"} if cloud is ABSENT else {"network": "synop", "point_cloud": cloud}
    assert len(json.dumps(identifier)) < 200_000
    assert_refused(clouds.notify("cloud", identifier), INR, words)


def test_case_n04_own_maximum(clouds: Client) -> None:
    publish_cloud(clouds, [[1, 1]] * 3, event_type="cloud_optional")
    response = clouds.notify("cloud_optional", {"network": "synop", "point_cloud": [[1, 1]] * 4})
    assert_refused(response, INR, "point cloud contains 4 points, maximum is 3")


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_n04_reading(clouds: Client, operation: str) -> None:
    request = body("cloud", {"polygon": SQ, "point_cloud": [[1, 1]]}, from_id="1")
    fragment = "identifier.point_cloud is only supported for notify operations"
    assert_refused(clouds.answer(operation, request), REFUSALS[operation], fragment)
    request = body("cloud", {"point": "1,1"}, from_id="1")
    fragment = "identifier.point is not supported for point-cloud schemas"
    assert_refused(clouds.answer(operation, request), REFUSALS[operation], fragment)


@pytest.mark.parametrize("operation", ["watch", "replay"])
@pytest.mark.parametrize("event_type", ["mars", "test_polygon"])
def test_case_n04_reading_without_clouds(api: Client, operation: str, event_type: str) -> None:
    """The reason is the same for event types that have no clouds, and comes before what is missing."""
    request = body(event_type, {"point_cloud": [[1, 1]]}, from_id="1")
    fragment = "identifier.point_cloud is only supported for notify operations"
    assert_refused(api.answer(operation, request), REFUSALS[operation], fragment)


def test_cloud_schema(clouds: Client) -> None:
    identifier = clouds.get("/api/v1/schema/cloud_optional").json()["schema"]["identifier"]
    assert identifier["point_cloud"] == {"type": "PointCloudHandler", "max_points": 3, "required": False}


P_ARRAY = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]]
Q_ARRAY = [[10, 10], [10.2, 10], [10.2, 10.2], [10, 10.2], [10, 10]]


def test_case_n05_arrays_and_text(api: Client) -> None:
    api.publish("test_polygon", but(POLYGON, polygon=P_ARRAY), "array")
    api.publish("test_polygon", but(POLYGON, polygon=P), "text")
    api.publish("test_polygon", but(POLYGON, polygon=Q), "elsewhere")
    api.publish("test_polygon", but(POLYGON, polygon=json.dumps(P_ARRAY)), "array in text")
    everything = ["array", "text", "array in text"]
    for polygon in (P, P_ARRAY, json.dumps(P_ARRAY)):
        assert payloads(api.replay("test_polygon", {"polygon": polygon})) == everything
    for point in ("52.55,13.5", [52.55, 13.5], "[52.55, 13.5]"):
        assert payloads(api.replay("test_polygon", {"point": point})) == everything


@pytest.mark.parametrize("polygon", [Q, Q_ARRAY, json.dumps(Q_ARRAY)], ids=["text", "array", "array in text"])
def test_case_n05_output_is_an_array_of_floats(api: Client, polygon: Any) -> None:
    expected = b'"polygon":[[10.0,10.0],[10.2,10.0],[10.2,10.2],[10.0,10.2],[10.0,10.0]]'
    with api.watch("test_polygon", {"polygon": polygon}) as stream:
        stream.until("connection_established")
        api.publish("test_polygon", but(POLYGON, polygon=polygon), "x")
        assert stream.notification()["data"]["identifier"]["polygon"] == Q_ARRAY
    assert expected in api.replay("test_polygon", {"polygon": polygon}).raw
    request = body("test_polygon", {"polygon": polygon}, from_id="1")
    lines = api.answer("replay", request, (*JSON, ("Accept", "application/x-ndjson")))
    assert expected in lines.body


def test_case_n05_the_text_of_older_releases_can_be_kept(launch: Launch) -> None:
    api = launch({"application": {"polygon_output": "text"}}).client
    for polygon in (Q, Q_ARRAY):
        api.publish("test_polygon", but(POLYGON, polygon=polygon), "x")
    with api.watch("test_polygon", {"polygon": Q}, from_id="1") as stream:
        found = [stream.notification()["data"]["identifier"]["polygon"] for _ in range(2)]
        api.publish("test_polygon", but(POLYGON, polygon=Q_ARRAY), "live")
        found.append(stream.notification()["data"]["identifier"]["polygon"])
    assert found == ["(10,10,10.2,10,10.2,10.2,10,10.2,10,10)"] * 3


BAD_ARRAYS = [
    [],
    [[0, 0], [1, 0], [0, 0]],
    [[0, 0], [0, 1], [1, 1], [1, 0]],
    [[0, 0, 0], [0, 1], [1, 1], [0, 0]],
    [["0", "0"], [0, 1], [1, 1], ["0", "0"]],
    [[91, 0], [0, 1], [1, 1], [91, 0]],
    [0, 0, 0, 1, 1, 1, 0, 0],
    [[0, 0], None, [1, 1], [0, 0]],
    [[0, True], [0, 1], [1, 1], [0, True]],
]


@pytest.mark.parametrize("polygon", BAD_ARRAYS, ids=json.dumps)
def test_case_n05_bad_arrays(api: Client, polygon: Any) -> None:
    response = api.notify("test_polygon", but(POLYGON, polygon=polygon), "x")
    assert_refused(response, INR, "field 'polygon'", "must be a valid polygon")
    response = api.answer("replay", body("test_polygon", {"polygon": polygon}, from_id="1"))
    assert_refused(response, IRR, "field 'polygon'", "must be a valid polygon")


def test_case_n06_cap_of_an_event_type(launch: Launch) -> None:
    caps = {
        "watch_endpoint": {"max_historical_notifications": 10},
        "notification_schema": {"mars": {"max_historical_notifications": 1}},
    }
    client = launch(caps).client
    for step in range(3):
        client.publish("mars", but(MARS, step=step))
        client.publish("dissemination", but(DISSEMINATION, step=step), "x")
    stream = client.replay("mars", OD)
    assert stream.kinds == [
        "replay_started",
        "notification",
        "notification_replay_limit_reached",
        "connection-closing",
    ]
    assert stream.frames[-2].data["max_allowed"] == 1
    assert len(client.replay("dissemination", FOO).notifications) == 3
    # Only what lies inside the window counts.
    assert "replay_completed" in client.replay("mars", OD, from_id="1", to_id="1").kinds


def test_case_n07_published_while_replaying(api: Client) -> None:
    """Nothing waits between reading the opening and publishing; the history may or may not be through."""
    api.publish_many("mars", ((but(MARS, step=step), None) for step in range(90)))
    with api.watch("mars", OD, from_id="1") as stream:
        api.publish_many("mars", ((but(MARS, step=step), None) for step in range(90, 100)))
        while len(stream.notifications) < 100:
            stream.notification()
    assert steps(stream) == list(range(100))


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_n08_unknown_keys(api: Client, operation: str) -> None:
    response = api.answer(operation, body("mars", {**OD, "bogus": None}, from_id="1"))
    fragment = f"Unknown field 'bogus' provided for {operation} operation"
    assert_refused(response, REFUSALS[operation], fragment)
    for name, value in (("point", "1,1"), ("polygon", SQ)):  # before the required field that is missing
        response = api.answer(operation, body("mars", {name: value}, from_id="1"))
        assert_refused(response, REFUSALS[operation], f"Unknown field '{name}' provided for {operation} operation")


@pytest.fixture
def five(api: Client) -> tuple[Client, int]:
    """A server with five notifications, and the sequence of the first."""
    api.publish_many("mars", ((but(MARS, step=step), None) for step in range(1, 6)))
    first: int = api.replay("mars", OD).notifications[0]["sequence"]
    return api, first


def test_case_n09_window(five: tuple[Client, int]) -> None:
    api, first = five

    def window(start: int, end: int | None) -> tuple[list[int], Any]:
        members = {"from_id": str(first - 1 + start)}
        if end is not None:
            members["to_id"] = str(first - 1 + end)
        stream = api.replay("mars", OD, **members)
        assert stream.kinds[-2:] == ["replay_completed", "connection-closing"]
        assert stream.frames[0].data["to_date"] is None
        end_sequence = stream.frames[0].data["end_sequence"]
        return list(steps(stream)), end_sequence if end_sequence is None else end_sequence - first + 1

    assert window(2, 4) == ([2, 3, 4], 4)
    assert window(2, 99) == ([2, 3, 4, 5], 5)
    assert window(2, None) == ([2, 3, 4, 5], None)
    assert window(3, 3) == ([3], 3)


def test_case_n09_dates(five: tuple[Client, int]) -> None:
    api, first = five
    stored = [event["time"] for event in api.replay("mars", OD).notifications]
    time.sleep(0.002)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.002)
    api.publish("mars", but(MARS, step=6))
    stream = api.replay("mars", OD, from_id="1", to_date=between)
    assert steps(stream) == [1, 2, 3, 4, 5]
    assert stream.frames[0].data["end_sequence"] == first + 4
    stream = api.replay("mars", OD, from_date=stored[0], to_date=stored[-1])
    assert steps(stream) == [1, 2, 3, 4, 5]
    stream = api.replay("mars", OD, from_id="1", to_date="2020-01-01T00:00:00Z")
    assert stream.kinds == ["replay_started", "replay_completed", "connection-closing"]
    assert stream.frames[0].data["end_sequence"] == first - 1
    assert stream.frames[0].data["to_date"] == "2020-01-01T00:00:00Z"
    stream = api.replay("mars", OD, from_id="1", to_date="1500-01-01T00:00:00Z")
    assert (stream.notifications, stream.frames[0].data["to_date"]) == ([], "1500-01-01T00:00:00Z")
    stream = api.replay("mars", OD, from_id="1", to_date="10000000000")
    assert (steps(stream), stream.frames[0].data["to_date"]) == ([1, 2, 3, 4, 5, 6], "2286-11-20T17:46:40Z")
    stream = api.replay("mars", OD, from_id="1", to_date="2100-01-01T00:00:00.7Z")
    assert stream.frames[0].data["end_sequence"] == first + 5
    assert stream.frames[0].data["to_date"] == "2100-01-01T00:00:00Z", "whole seconds"


DATE_ORDER = {"from_date": "2025-01-02T00:00:00Z", "to_date": "2025-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"from_id": "5", "to_id": "4"}, "to_id (4) must not be lower than from_id (5)"),
        (DATE_ORDER, "to_date (2025-01-01T00:00:00+00:00) must not be earlier"),
        ({"from_id": "1", "to_id": "1", "to_date": "0"}, "Cannot specify both to_id and to_date"),
        ({"to_id": "4"}, "Replay endpoint requires either from_id or from_date"),
        ({"from_id": "1", "to_id": "soon"}, "to_id must be a valid positive integer"),
        ({"from_id": "1", "to_id": ""}, "to_id cannot be empty"),
        ({"from_id": "-3"}, "from_id must be a valid positive integer"),
        ({"from_date": " "}, "from_date cannot be empty"),
        ({"from_date": "2025-01-01"}, "from_date must be a valid datetime/timestamp"),
        ({"from_id": "1", "to_date": "yesterday"}, "to_date must be a valid datetime/timestamp"),
    ],
    ids=["ids", "dates", "both", "no start", "bad id", "empty id", "sign", "blank date", "day alone", "bad date"],
)
def test_case_n09_refused(api: Client, members: dict[str, str], words: str) -> None:
    assert_refused(api.answer("replay", body("mars", OD, **members)), IRR, words)


def test_case_n09_mixed_ends_are_not_compared(five: tuple[Client, int]) -> None:
    api, _ = five
    assert api.replay("mars", OD, from_id="99999", to_date="2020-01-01T00:00:00Z").notifications == []
    assert api.replay("mars", OD, from_date="2100-01-01T00:00:00Z", to_id="1").notifications == []


def test_case_n09_other_endpoints(api: Client) -> None:
    words = "to_id and to_date are only supported for the replay endpoint, not /"
    assert_refused(api.answer("watch", body("mars", OD, to_id="4")), IWR, f"{words}watch")
    request = body("mars", MARS, to_date="2025-01-01T00:00:00Z")
    assert_refused(api.answer("notification", request), INR, f"{words}notification")


def test_home_page_sections(api: Client) -> None:
    """Two sections with two buttons each, in this order, and then the API page."""
    page = api.get("/").body.decode()
    rest = page
    for name in ("use-aviso", "operate-server"):
        section, end, rest = rest.partition(f'<section id="{name}">')[2].partition("</section>")
        assert end, name
        assert section.count('class="btn btn-secondary"') == 2
        assert 0 < section.find("📖 Documentation") < section.find("📚 GitHub repository")
        assert "swagger-ui/" not in section
    assert page.count('class="btn btn-secondary"') == 4
    assert 'class="api-reference"' in rest
    assert 'href="swagger-ui/"' in rest
    assert "Open API reference" in rest
    assert "btn-primary" not in page
    assert "{{" not in page


def test_home_page_links_are_escaped(launch: Launch) -> None:
    link = """https://example.org/?a=1&b="quoted"<'test'>"""
    page = launch({"application": {"homepage": {"client_documentation_url": link}}}).client.get("/").body.decode()
    assert link not in page
    assert 'href="https://example.org/?a=1&amp;b=&quot;quoted&quot;&lt;&#39;test&#39;&gt;"' in page
