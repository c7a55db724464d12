"""D. Notify."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conformance.expectations import INR, assert_refused
from tests.conformance.samples import MARS, POLYGON, PROBE, SEED_A, but, without
from tests.harness import Client
from tests.harness.client import body

ANYTHING = {"class": "od"}


def test_case_056_success(api: Client) -> None:
    response = api.notify("mars", MARS, "x")
    assert response.status == 200
    assert response.header("content-type") == "application/json"
    answer = response.json()
    assert list(answer) == ["status", "request_id", "processed_at"]
    assert answer["status"] == "success"
    assert answer["request_id"] == response.header("x-request-id")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer["processed_at"])


@pytest.mark.parametrize("field", [name for name in MARS if name != "expver"])
def test_case_057_every_declared_field_is_needed(api: Client, field: str) -> None:
    response = api.notify("mars", without(MARS, field))
    assert_refused(response, INR, f"Required field '{field}'")
    assert b"missing for notify operation" in response.body


@pytest.mark.parametrize("field", PROBE)
def test_case_057_optional_fields_too(api: Client, field: str) -> None:
    assert_refused(api.notify("probe", without(PROBE, field)), INR, f"Required field '{field}'")


def test_case_058_default_is_not_for_missing_keys(api: Client) -> None:
    assert_refused(api.notify("mars", without(MARS, "expver")), INR, "Required field 'expver'")


def test_case_059_unknown_key(api: Client) -> None:
    response = api.notify("mars", but(MARS, foo="x"))
    assert_refused(response, INR, "Unknown field 'foo' provided for notify operation")
    response = api.notify("mars", {"foo": "x", "step": "bad"})
    assert_refused(response, INR, "Unknown field 'foo' provided for notify operation")


def test_case_060_point(api: Client) -> None:
    assert_refused(api.notify("mars", but(MARS, point="1,2")), INR, "point")
    assert_refused(api.notify("mars", {"point": None, "step": "bad", "foo": 1}), INR, "point")
    assert_refused(api.notify("test_polygon", but(POLYGON, point="1,2"), "x"), INR, "point")


def test_case_061_constraint_object(api: Client) -> None:
    request = body("extreme_event", but(SEED_A, severity={"gte": 4}), payload={"note": "should-fail"})
    assert_refused(api.answer("notification", request), INR, "severity")


def test_case_062_constraint_object_on_optional_field(api: Client) -> None:
    assert_refused(api.notify("mars", but(MARS, step={"gte": 4})), INR, "Field 'step'")


@pytest.mark.parametrize("value", [None, ["1"], [], {}], ids=json.dumps)
@pytest.mark.parametrize("field", MARS)
def test_case_063_only_scalars(api: Client, field: str, value: Any) -> None:
    assert_refused(api.notify("mars", {**MARS, field: value}), INR, f"Field '{field}'")


def test_case_064_required_payload(api: Client) -> None:
    for response in (api.notify("test_polygon", POLYGON), api.notify("test_polygon", POLYGON, None)):
        refusal = assert_refused(response, INR)
        assert refusal["message"].startswith("Payload is required")
    assert api.notify("test_polygon", POLYGON, False).status == 200


def test_fields_are_checked_before_the_payload_rule(api: Client) -> None:
    assert_refused(api.notify("test_polygon", without(POLYGON, "date")), INR, "Required field 'date'")


@pytest.mark.parametrize("event_type", ["mars", "probe"])
def test_case_065_optional_payload(api: Client, event_type: str) -> None:
    identifier = {"mars": MARS, "probe": PROBE}[event_type]
    api.publish(event_type, identifier)
    api.publish(event_type, identifier, None)
    stream = api.replay(event_type, ANYTHING if event_type == "mars" else {})
    assert [event["data"]["payload"] for event in stream.notifications] == [None, None]
    assert stream.raw.count(b'"payload":null') == 2


PAYLOADS = ["s", "", 42, 0, -1.5, 1e300, True, False, ["a", "b"], [], {}, {"b": 1, "a": {"c": None}}, [[None]]]


@pytest.mark.parametrize("payload", PAYLOADS, ids=json.dumps)
def test_case_066_payload_round_trip(api: Client, payload: Any) -> None:
    api.publish("mars", MARS, payload)
    (event,) = api.replay("mars", ANYTHING).notifications
    assert event["data"]["payload"] == payload
    assert type(event["data"]["payload"]) is type(payload)


def test_case_066_payload_is_compact_and_sorted(api: Client) -> None:
    api.publish("mars", MARS, {"b": 1, "a": {"d": [1, 2], "c": None}})
    assert b'"payload":{"a":{"c":null,"d":[1,2]},"b":1}' in api.replay("mars", ANYTHING).raw


@pytest.mark.parametrize("text", ["Grüße", "日本語", "\U0001f30d", "line\u2028separator", "tab\tnew\nline", "\x7f"])
def test_case_067_text_beyond_ascii(api: Client, text: str) -> None:
    api.publish("mars", MARS, {text: text})
    stream = api.replay("mars", ANYTHING)
    (event,) = stream.notifications
    assert event["data"]["payload"] == {text: text}
    assert json.dumps(text, ensure_ascii=False).encode() in stream.raw


def test_case_068_numbers(api: Client) -> None:
    api.publish("mars", but(MARS, step=1))
    (event,) = api.replay("mars", ANYTHING).notifications
    assert event["data"]["identifier"]["step"] == "1"
    api.publish("extreme", {"region": "north", "run_time": 12, "severity": 4, "anomaly": 12.5})
    (event,) = api.replay("extreme", {}).notifications
    assert event["data"]["identifier"] == {"region": "north", "run_time": "1200", "severity": "4", "anomaly": "12.5"}


def test_case_069_fraction_for_an_integer(api: Client) -> None:
    assert_refused(api.notify("mars", but(MARS, step=1.0)), INR, "step")


def test_case_070_boolean_for_an_integer(api: Client) -> None:
    assert_refused(api.notify("mars", but(MARS, step=True)), INR, "step")


def test_a_refused_notification_is_not_stored(api: Client) -> None:
    api.notify("mars", but(MARS, step="bad"))
    assert api.replay("mars", ANYTHING).notifications == []
