"""Words in refusals that the published client turns into hints for its user."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.expectations import INR, assert_refused
from tests.conformance.samples import MARS, POLYGON, PROBE, SEED_A, but
from tests.harness import Client
from tests.harness.client import body


@pytest.mark.parametrize(
    ("event_type", "identifier", "words"),
    [
        ("mars", but(MARS, **{"class": "abc"}), ["exceeds maximum length"]),
        ("mars", but(MARS, domain="aa"), ["has invalid value", "Allowed: ["]),
        ("probe", but(PROBE, kind="green"), ["has invalid value", "Allowed: ["]),
        ("mars", but(MARS, step="100001"), ["outside allowed range"]),
        ("extreme_event", but(SEED_A, severity="0"), ["outside allowed range"]),
        ("extreme_event", but(SEED_A, anomaly="100.1"), ["outside allowed range"]),
        ("mars", but(MARS, time="24"), ["invalid hours"]),
        ("mars", but(MARS, time="24:00"), ["invalid hours"]),
        ("mars", but(MARS, time="2400"), ["invalid hours"]),
        ("mars", but(MARS, time="12:60"), ["invalid minutes"]),
        ("mars", but(MARS, time="1260"), ["invalid minutes"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_words_about_fields(api: Client, event_type: str, identifier: dict[str, Any], words: list[str]) -> None:
    response = api.notify(event_type, identifier)
    assert_refused(response, INR)
    for word in words:
        assert word in response.body.decode()


@pytest.mark.parametrize("date", ["2025-02-30", "not-a-date", "202512", ""])
def test_words_about_dates(api: Client, date: str) -> None:
    response = api.notify("mars", but(MARS, date=date))
    refusal = assert_refused(response, INR, "date")
    text = response.body.decode()
    assert "contains invalid date" in text or "Failed to parse date" in text
    if date:
        assert refusal["details"] != refusal["message"]


@pytest.mark.parametrize(
    ("polygon", "words"),
    [
        ("(1,2,3)", "odd number of values"),
        ("(a,2,3,4,5,6,a,2)", "could not parse latitude"),
        ("(1,b,3,4,5,6,1,b)", "could not parse longitude"),
        ("(0,0,1,0,0,0)", "at least 4 coordinate pairs"),
        ("", "polygon coordinate string is empty"),
        ("()", "polygon coordinate string is empty"),
        ("(91,0,0,1,1,1,91,0)", "outside the valid range"),
        ("(0,181,0,1,1,1,0,181)", "outside the valid range"),
    ],
)
def test_words_about_polygons(api: Client, polygon: str, words: str) -> None:
    response = api.notify("test_polygon", but(POLYGON, polygon=polygon), "x")
    assert_refused(response, INR, "must be a valid polygon")
    assert words in response.body.decode()


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_words_about_missing_filters(api: Client, operation: str) -> None:
    response = api.answer(operation, body("mars", {}, from_id="1"))
    assert response.status == 400
    assert f"missing for {operation} operation" in response.body.decode()


def test_words_about_unknown_event_types(api: Client) -> None:
    response = api.answer("watch", body("nope", {}))
    assert b"unknown event type" in response.body
    assert b"UNKNOWN_EVENT_TYPE" in response.body


def test_words_about_deleting(api: Client) -> None:
    assert "Notification not found" in api.delete("/api/v1/admin/notification/mars@999999").json()["message"]
    message = api.delete("/api/v1/admin/notification/mars").json()["message"]
    assert "must be in" in message
    assert "'<stream>@<sequence>' format" in message
