"""C. Event types, strict mode and event types without a schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import Launch
from tests.conformance.expectations import INR, IWR, OPERATIONS, REFUSALS, UUID, assert_refused, payloads
from tests.conformance.samples import EVENT_TYPES, MARS
from tests.harness import Client, Response
from tests.harness.client import body


def assert_unknown(response: Response, event_type: str, configured: list[str]) -> None:
    assert response.status == 400
    assert response.header("content-type") == "application/json"
    refusal = response.json()
    assert set(refusal) == {"code", "configured_event_types", "error", "message", "request_id"}
    assert refusal["code"] == "UNKNOWN_EVENT_TYPE"
    assert refusal["error"] == "unknown_event_type"
    assert refusal["configured_event_types"] == configured
    assert f"unknown event type '{event_type}'" in refusal["message"]
    assert refusal["request_id"] == response.header("x-request-id")
    assert UUID.fullmatch(refusal["request_id"])


def test_case_043_notify(api: Client) -> None:
    assert_unknown(api.answer("notification", body("nope", {})), "nope", EVENT_TYPES)


def test_case_044_watch(api: Client) -> None:
    assert_unknown(api.answer("watch", body("nope", {})), "nope", EVENT_TYPES)


def test_case_045_replay(api: Client) -> None:
    assert_unknown(api.answer("replay", body("nope", {}, from_id="1")), "nope", EVENT_TYPES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_046_letter_case(api: Client, operation: str) -> None:
    assert_unknown(api.answer(operation, body("MARS", MARS, from_id="1")), "MARS", EVENT_TYPES)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_case_047_empty_name(api: Client, operation: str) -> None:
    assert_unknown(api.answer(operation, body("", {}, from_id="1")), "", EVENT_TYPES)


def test_case_048_before_point(api: Client) -> None:
    assert_unknown(api.answer("notification", body("nope", {"point": "1,2"})), "nope", EVENT_TYPES)


def test_case_049_before_start_point(api: Client) -> None:
    assert_unknown(api.answer("replay", body("nope", {})), "nope", EVENT_TYPES)
    assert_unknown(api.answer("replay", body("nope", {"polygon": "x", "point": "y"})), "nope", EVENT_TYPES)


def test_a_topic_base_is_not_an_event_type(api: Client) -> None:
    assert_unknown(api.answer("watch", body("diss", {})), "diss", EVENT_TYPES)


@pytest.fixture(scope="module")
def closed(launch: Launch) -> Client:
    """A server that knows no event type and insists on it."""
    strict = {"notification_schema_strict": True, "notification_schema": {}}
    return launch(strict, without=["notification_schema"]).client


def test_case_050_strict_without_schema(closed: Client) -> None:
    for operation in OPERATIONS:
        assert_unknown(closed.answer(operation, body("mars", MARS, from_id="1")), "mars", [])


def test_an_empty_schema_map_is_no_missing_section(closed: Client) -> None:
    assert closed.get("/api/v1/schema").json() == {
        "status": "success",
        "total_schemas": 0,
        "event_types": [],
        "schema": {},
    }


@pytest.fixture(scope="module")
def generic_server(launch: Launch) -> Client:
    return launch(without=["notification_schema"]).client


@pytest.fixture
def generic(generic_server: Client) -> Client:
    """A server without any schema, empty."""
    generic_server.wipe_all()
    return generic_server


def test_case_051_reading_generic_events(generic: Client) -> None:
    generic.publish("free", {"b": "2", "a": "x.y"}, "text")
    stream = generic.replay("free", {"b": "2", "a": "x.y"})
    assert stream.kinds == ["replay_started", "notification", "replay_completed", "connection-closing"]
    assert {frame.data["topic"] for frame in stream.frames if frame.kind != "notification"} == {"free.x.y.2"}
    (event,) = stream.notifications
    assert event.pop("time")
    assert event == {
        "specversion": "1.0",
        "id": f"free@{event['sequence']}",
        "sequence": event["sequence"],
        "type": "int.ecmwf.aviso.free",
        "source": "http://localhost:8000",
        "datacontenttype": "application/json",
        "dataschema": "http://localhost:8000/schema/free",
        "data": {"identifier": {"a": "x.y", "b": "2"}, "payload": "text"},
    }


def test_case_052_empty_value(generic: Client) -> None:
    assert_refused(generic.notify("free", {"a": ""}), INR)
    assert generic.answer("watch", body("free", {"a": ""})).status == 200


def test_case_053_constraint_object(generic: Client) -> None:
    assert_refused(generic.notify("free", {"a": {"eq": 1}}), INR)
    assert_refused(generic.answer("watch", body("free", {"a": {"eq": 1}})), IWR)


@pytest.mark.parametrize("value", [None, [1]], ids=["null", "array"])
def test_generic_values_are_scalars(generic: Client, value: Any) -> None:
    for operation in OPERATIONS:
        request = body("free", {"a": value}, from_id="1")
        assert_refused(generic.answer(operation, request), REFUSALS[operation], "Field 'a'")


def test_case_054_schema_routes_without_schema(generic: Client) -> None:
    listing = generic.get("/api/v1/schema")
    assert listing.status == 200
    assert isinstance(listing.json().pop("message"), str)
    assert listing.json() == {
        "status": "success",
        "total_schemas": 0,
        "event_types": [],
        "schema": {},
        "message": listing.json()["message"],
    }
    one = generic.get("/api/v1/schema/x")
    assert one.status == 404
    assert set(one.json()) == {"status", "message", "request_id"}
    assert one.json()["status"] == "error"
    assert one.json()["request_id"] == one.header("x-request-id")


def test_case_055_not_strict_with_schemas(launch: Launch) -> None:
    client = launch({"notification_schema_strict": False}).client
    client.publish("free", {"a": "1"}, "free")
    assert payloads(client.replay("free", {"a": "1"})) == ["free"]
    refusal = client.notify("mars", {"class": "od"})
    assert_refused(refusal, INR, "Required field")
    client.publish("mars", MARS)


def test_generic_readers_send_the_same_keys(generic: Client) -> None:
    generic.publish("free", {"a": "1"}, "one")
    generic.publish("free", {"a": "1", "b": "2"}, "two")
    generic.publish("free", {}, "none")
    assert payloads(generic.replay("free", {"a": "1"})) == ["one"]
    assert payloads(generic.replay("free", {"b": "2", "a": "1"})) == ["two"]
    assert payloads(generic.replay("free", {})) == ["none"]


def test_generic_wildcards(generic: Client) -> None:
    generic.publish("free", {"a": "1", "b": "2"}, "x")
    generic.publish("free", {"a": "1", "b": "3"}, "y")
    assert payloads(generic.replay("free", {"a": "*", "b": "3"})) == ["y"]
    assert payloads(generic.replay("free", {"a": "*", "b": "*"})) == ["x", "y"]
    assert payloads(generic.replay("free", {"a": "1", "b": "*3"})) == []


def test_generic_scalars_become_text(generic: Client) -> None:
    generic.publish("free", {"a": 5, "b": True, "c": 5.0, "d": 1e3})
    (event,) = generic.replay("free", {"a": "5", "b": "true", "c": "5.0", "d": "1000.0"}).notifications
    assert event["data"]["identifier"] == {"a": "5", "b": "true", "c": "5.0", "d": "1000.0"}


def test_generic_notifications_have_no_geometry(generic: Client) -> None:
    square = "(0,0,0,2,2,2,2,0,0,0)"
    generic.publish("free", {"polygon": square})
    assert generic.replay("free", {"polygon": square}).notifications == []
    assert_refused(generic.notify("free", {"point": "1,1"}), INR, "point")


def test_generic_live_watch(generic: Client) -> None:
    with generic.watch("free", {"a": "*"}) as stream:
        stream.until("connection_established")
        generic.publish("free", {"a": "1"}, "live")
        assert stream.notification()["data"] == {"identifier": {"a": "1"}, "payload": "live"}


@pytest.mark.parametrize("name", ["a.b", "a%b", "a*b", "a>b", "a b", "é", "_a", "-a", ""])
def test_generic_names_follow_the_rule_for_bases(generic: Client, name: str) -> None:
    for operation in OPERATIONS:
        assert_refused(generic.answer(operation, body(name, {"a": "1"}, from_id="1")), REFUSALS[operation])
