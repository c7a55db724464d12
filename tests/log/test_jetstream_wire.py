"""Notifications as messages and back: ours byte for byte, and those of others as well as they can be understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import LogError
from aviso_server.log.jetstream.wire import identify_by, message_of, notification_of, readable, time_of
from aviso_server.model import topic as topics
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.scenario import block

IDENTIFY = identify_by({"mars": ("class", "step"), "polygon": ("date", "time"), "area": ("polygon",)})
PAIRS = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]]

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
boxes = st.none() | st.tuples(*[st.floats(-90, 90)] * 4).map(lambda numbers: Box(*numbers))


def back(draft: Draft) -> Notification:
    """What a reader makes of the message; brokers add headers of their own at the end."""
    message = message_of(draft)
    headers = block(message) + b"Nats-Stream: MARS\r\nNats-Sequence: 7\r\n\r\n"
    return notification_of(7, 11, message.subject.encode(), headers, message.body, IDENTIFY)


@given(tokens=st.lists(text, max_size=4), values=st.dictionaries(text, text, max_size=4), box=boxes)
def test_a_draft_comes_back_as_it_was(tokens: list[str], values: dict[str, str], box: Box | None) -> None:
    draft = Draft("mars", topics.build(["mars", *tokens]), compact(values), compact(values), box)
    assert back(draft) == Notification(7, 11, draft.topic, draft.identifier, draft.payload, draft.box)


@given(tokens=st.lists(text, max_size=4))
def test_every_topic_is_a_subject_of_its_stream(tokens: list[str]) -> None:
    """No blanks, no empty words, no wildcards; different topics have different subjects."""
    draft = Draft("mars", topics.build(["mars", *tokens]), b"{}", b"null")
    subject = message_of(draft).subject
    assert subject.startswith("mars.")
    assert all(subject.split("."))
    assert not set(subject) & set(" \t\r\n*>")
    assert len(subject.encode()) <= 3968
    if len(tokens) > 0 and len(draft.topic) < 300:
        assert topics.parse(subject) == topics.parse(draft.topic), "others read the same values"


def test_a_long_topic_travels_in_a_header() -> None:
    drafts = [Draft("mars", f"mars.{'x' * 4000}.{number}", b"{}", b"null") for number in (1, 2)]
    assert message_of(drafts[0]).subject != message_of(drafts[1]).subject
    assert [back(draft).topic for draft in drafts] == [draft.topic for draft in drafts]


def test_the_headers_of_the_reference_server() -> None:
    identifier = compact({"date": "20250706", "polygon": PAIRS, "time": "1200"})
    draft = Draft("polygon", "polygon.20250706.1200", identifier, b"1", Box(52.4, 13.4, 52.6, 13.6))
    message = message_of(draft)
    assert b"\r\nspatial_bbox: 52.4,13.4,52.6,13.6\r\n" in block(message)
    assert b"\r\nspatial_geometry: " + compact(PAIRS) + b"\r\n" in block(message)
    assert back(draft).identifier == identifier
    cloud = compact({"point_cloud": [[1.0, 2.0], [3.0, 4.0]]})
    message = message_of(Draft("mars", "mars.od", cloud, b"1", Box(1, 2, 3, 4)))
    assert b"\r\nspatial_bbox: 1,2,3,4\r\n" in block(message)
    assert b"\r\nspatial_point_cloud: [[1.0,2.0],[3.0,4.0]]\r\n" in block(message)


def test_a_large_shape_stands_in_the_headers_once() -> None:
    """A broker takes 64 kB of headers, and a shape may have 61,440 bytes; it may be a part of the topic too."""
    ring = compact([[1.5, 1.25]] + [[1.25, 1.25]] * 5_118 + [[1.5, 1.25]])
    draft = Draft("area", "area." + topics.encode(ring.decode()), b'{"polygon":%b}' % ring, b"1", Box(1, 1, 2, 2))
    assert len(block(message_of(draft))) < len(ring) + 500
    assert back(draft) == Notification(7, 11, draft.topic, draft.identifier, draft.payload, draft.box)
    cloud = Draft("mars", "mars.od.4", b'{"class":"od","point_cloud":%b}' % ring, b"1", Box(1, 1, 2, 2))
    assert len(block(message_of(cloud))) < len(ring) + 500
    assert back(cloud).identifier == cloud.identifier


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(LogError, match="empty part"):
        message_of(Draft("mars", "mars..x", b"{}", b"null"))


@pytest.mark.parametrize(
    ("subject", "headers", "body", "identifier", "payload", "box"),
    [
        (b"mars.od.4", b"", b'{"b":1, "a":2}', {"class": "od", "step": "4"}, {"a": 2, "b": 1}, None),
        (b"mars.od.4", b"", b"text", {"class": "od", "step": "4"}, "text", None),
        (b"mars.%2A.1%2E5", b"", b"null", {"step": "1.5"}, None, None),
        (b"unknown.od", b"", b"1", {}, 1, None),
        (
            b"polygon.20250706.1200",
            b"NATS/1.0\r\nspatial_bbox: 0,0,1,1.5\r\nspatial_geometry: (0,0,0,1,1,1,0,0)\r\n\r\n",
            b"[]",
            {"date": "20250706", "time": "1200", "polygon": [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]},
            [],
            Box(0, 0, 1, 1.5),
        ),
        (
            b"polygon.20250706.1200",
            b"NATS/1.0\r\nspatial_bbox: 0,0,1,1\r\nspatial_geometry: [[0,0],[0,1.0],[1,1],[0,0]]\r\n\r\n",
            b"[]",
            {"date": "20250706", "time": "1200", "polygon": [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]},
            [],
            Box(0, 0, 1, 1),
        ),
        (
            b"area.(0,0,0,1%2E5,1,1,0,0)",
            b"",
            b"1",
            {"polygon": [[0.0, 0.0], [0.0, 1.5], [1.0, 1.0], [0.0, 0.0]]},
            1,
            None,
        ),
        (
            b"area.[[0%2E0,0%2E0],[0%2E0,1%2E5],[1%2E0,1%2E0],[0%2E0,0%2E0]]",
            b"",
            b"1",
            {"polygon": [[0.0, 0.0], [0.0, 1.5], [1.0, 1.0], [0.0, 0.0]]},
            1,
            None,
        ),
        (
            b"polygon.20250706.1200",
            b"NATS/1.0\r\nspatial_geometry: invalid\r\n\r\n",
            b"1",
            {"date": "20250706", "time": "1200", "polygon": "invalid"},
            1,
            None,
        ),
        (
            b"mars.od.4",
            b"NATS/1.0\r\nspatial_point_cloud: [[1,2\r\n\r\n",
            b"1",
            {"class": "od", "step": "4", "point_cloud": "[[1,2"},
            1,
            None,
        ),
        (
            b"mars.od.%2A",
            b"NATS/1.0\r\nspatial_point_cloud: [[1,2]]\r\nspatial_bbox: nonsense\r\n\r\n",
            b"\xff",
            {"class": "od", "point_cloud": [[1.0, 2.0]]},
            "\ufffd",
            None,
        ),
    ],
)
def test_messages_of_others(
    subject: bytes, headers: bytes, body: bytes, identifier: object, payload: object, box: Box | None
) -> None:
    found = notification_of(1, 2, subject, headers, body, IDENTIFY)
    assert found == Notification(1, 2, subject.decode(), compact(identifier), compact(payload), box)


@pytest.mark.parametrize("subject", [b"mars.od.4.more", b"mars.od", b"mars.%zz.4", b"unknown.%z"])
def test_messages_with_another_layout_mean_nothing(subject: bytes) -> None:
    found = notification_of(1, 2, subject, b"", b"1", IDENTIFY)
    usual = notification_of(2, 3, b"mars.od.4", b"", b"1", IDENTIFY)
    assert readable([found, usual]) == [usual]


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        (b"1970-01-01T00:00:01Z", 1_000_000_000),
        (b"1970-01-01T00:00:01.5Z", 1_500_000_000),
        (b"1970-01-01T00:00:00.000000001Z", 1),
        (b"2026-11-15T22:15:57.352291514Z", 1_794_780_957_352_291_514),
    ],
)
def test_times_of_the_broker(written: bytes, nanoseconds: int) -> None:
    assert time_of(written) == nanoseconds
