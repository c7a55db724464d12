"""The rendering of a notification, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.model.cloudevent import LIVE, REPLAY, Renderer
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import PolygonForm
from tests.model.test_batch import as_run

TIME = 1_933_135_200_123_456_000
TIDE = Notification(7, TIME, "tide.3.oslo", b'{"level":"3","port":"oslo"}', b"null")

NOTIFICATIONS = st.builds(
    Notification,
    sequence=st.integers(1, 2**63 - 1),
    time=st.integers(0, 4_000_000_000).flatmap(
        lambda second: st.sampled_from([0, 1, 1000, 1_000_000, 123_456_789, 999_999_999]).map(
            lambda fraction: second * 1_000_000_000 + fraction
        )
    ),
    topic=st.just("tide.x"),
    identifier=st.dictionaries(st.text("%abé\n"), st.text('%sd"\\é\u2028')).map(compact),
    payload=(
        st.none() | st.text("%bé\r\n", max_size=5) | st.lists(st.floats(allow_nan=False, allow_infinity=False))
    ).map(compact),
)


def test_the_example_of_the_contract() -> None:
    expected = (
        b'event: replay\ndata: {"data":{"identifier":{"level":"3","port":"oslo"},"payload":null},'
        b'"datacontenttype":"application/json","dataschema":"http://localhost/schema/tide","id":"tide@7","sequence":7,'
        b'"source":"http://localhost","specversion":"1.0","time":"2031-04-05T06:00:00.123456Z",'
        b'"type":"int.ecmwf.aviso.tide"}\n\n'
    )
    renderer = Renderer("tide", "http://localhost")
    assert renderer.frame(REPLAY, TIDE) == expected
    assert renderer.frame(LIVE, TIDE).startswith(b"event: live-notification\ndata: {")


@given(
    st.lists(NOTIFICATIONS, max_size=6),
    st.sampled_from(["tide", "50%d", 'q"\\', "é b"]),
    st.sampled_from([LIVE, REPLAY]),
)
def test_many_frames_are_the_frames_joined(notifications: list[Notification], event_type: str, name: bytes) -> None:
    renderer = Renderer(event_type, "http://localhost/%20%s?a=%d")
    assert renderer.frames(name, notifications) == b"".join(renderer.frame(name, each) for each in notifications)


@pytest.mark.parametrize(
    ("event_type", "address"),
    [
        ("tide", "tide"),
        ("50%d", "50%d"),
        ("a_b-c.d~1", "a_b-c.d~1"),
        ('é x"q', "%C3%A9%20x%22q"),
        ("{<\\>}", "%7B%3C%5C%3E%7D"),
    ],
)
def test_the_address_of_a_schema_is_an_address_whatever_the_event_type_is_called(event_type: str, address: str) -> None:
    event = json.loads(Renderer(event_type, "https://aviso.example.org/a").event(TIDE))
    assert event["dataschema"] == f"https://aviso.example.org/a/schema/{address}"
    assert event["type"] == f"int.ecmwf.aviso.{event_type}"


@given(NOTIFICATIONS, st.sampled_from(["tide", "50%d", 'q"\\']))
def test_an_event_is_one_line_of_sorted_compact_json(notification: Notification, event_type: str) -> None:
    renderer = Renderer(event_type, "https://aviso.example.org/a")
    event = renderer.event(notification)
    assert b"\n" not in event
    assert b"\r" not in event
    members = json.loads(event)
    assert list(members) == sorted(members)
    assert list(members["data"]) == ["identifier", "payload"]
    assert set(members) == {
        *("data", "datacontenttype", "dataschema", "id", "sequence", "source", "specversion", "time", "type"),
    }
    assert members["id"] == f"{event_type}@{notification.sequence}"
    assert members["sequence"] == notification.sequence
    assert members["type"] == f"int.ecmwf.aviso.{event_type}"
    assert members["dataschema"].startswith("https://aviso.example.org/a/schema/")
    assert members["data"]["identifier"] == json.loads(notification.identifier)
    assert members["data"]["payload"] == json.loads(notification.payload)


ARRAY = b'{"class":"od","polygon":[[0.0,0.0],[0.0,2.0],[2.0,2.0],[0.0,0.0]]}'
TEXT = b'{"class":"od","polygon":"(0,0,0,2,2,2,0,0)"}'


@pytest.mark.parametrize(("form", "expected"), [("array", ARRAY), ("text", TEXT)])
def test_polygons_go_out_in_one_form_whatever_is_stored(form: PolygonForm, expected: bytes) -> None:
    renderer = Renderer("area", "http://localhost", form)
    given = [Notification(number, TIME, "area.x", stored, b"1") for number, stored in enumerate((ARRAY, TEXT), 1)]
    for each in given:
        assert b'{"data":{"identifier":' + expected + b"," in renderer.event(each)
    run = as_run(given)
    assert renderer.frames(REPLAY, given) == renderer.frames(REPLAY, run)
    assert renderer.lines(given) == renderer.lines(run) == b"".join(renderer.event(each) + b"\n" for each in given)


def test_a_text_field_of_an_event_type_without_shapes_stays_text() -> None:
    assert TEXT in Renderer("area", "http://localhost").event(Notification(1, TIME, "area.x", TEXT, b"1"))


def test_of_malformed_geometry_there_is_an_error_and_no_event() -> None:
    renderer = Renderer("area", "http://localhost", "array")
    good, bad = (
        Notification(number, TIME, "area.x%2Ey", stored, b"1")
        for number, stored in enumerate((ARRAY, b'{"polygon":"invalid"}'), 1)
    )
    assert renderer.can_render(good)
    assert not renderer.can_render(bad)
    body = {
        "error": "CloudEvent creation failed",
        "message": "the stored polygon is malformed: 'invalid'",
        "request_id": "r-1",
        "sequence": 2,
        "topic": "area.x.y",
    }
    error = b"event: error\ndata: " + compact(body) + b"\n\n"
    assert renderer.frames(REPLAY, [good, bad], "r-1") == renderer.frame(REPLAY, good) + error
    assert renderer.lines([bad, good], "r-1") == compact(body) + b"\n" + renderer.event(good) + b"\n"
