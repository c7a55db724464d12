"""J. Stream scripts: which frames come, in which order, and how they are written."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.conformance.expectations import UUID, payloads, steps
from tests.conformance.samples import DISSEMINATION, MARS, but
from tests.harness import Client, EventStream, Frame
from tests.harness.client import JSON, body

AT_ONCE = 5.0  # seconds: long before the next heartbeat, which would take along what is held back
OD = {"class": "od"}
TOPIC = "mars.od.*.*.*.*.*.*"
SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
SSE_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "access-control-allow-origin": "*",
    "x-accel-buffering": "no",
    "transfer-encoding": "chunked",
}
MEMBERS = {
    "connection_established": {"type", "topic", "timestamp", "connection_will_close_in_seconds", "request_id"},
    "replay_completed": {"type", "topic", "timestamp"},
    "heartbeat": {"topic", "timestamp"},
    "connection-closing": {"reason", "message", "topic", "timestamp", "request_id"},
    "replay_started": {
        *{"type", "topic", "from_sequence", "from_date", "batch_size", "timestamp", "request_id"},
        "end_sequence",
        "to_date",
    },
    "notification": {
        *{"specversion", "id", "type", "source", "time", "datacontenttype", "dataschema", "data"},
        "sequence",
    },
}


def publish(api: Client, count: int, first: int = 0) -> None:
    api.publish_many("mars", ((but(MARS, step=step), step) for step in range(first, first + count)))


def assert_well_formed(stream: EventStream) -> None:
    """What holds for every frame of every stream."""
    assert b"".join(frame.raw for frame in stream.frames) == stream.raw
    for frame in stream.frames:
        assert set(frame.data) == MEMBERS[frame.kind], frame
        if "request_id" in frame.data:
            assert frame.data["request_id"] == stream.request_id
        if frame.kind != "notification":
            assert SECONDS.fullmatch(frame.data["timestamp"])
            assert frame.data["topic"] == TOPIC


def assert_headers(stream: EventStream) -> None:
    headers = dict(stream.headers)
    assert len(headers) == len(stream.headers)
    headers.pop("date", None)
    assert UUID.fullmatch(headers.pop("x-request-id"))
    assert headers == SSE_HEADERS


def test_case_133_live_only(api: Client) -> None:
    with api.watch("mars", OD) as stream:
        opening, heartbeat = stream.next(), stream.next()
    assert_headers(stream)
    assert opening.event == "live-notification"
    assert opening.data | {"timestamp": ""} == {
        "type": "connection_established",
        "topic": TOPIC,
        "timestamp": "",
        "connection_will_close_in_seconds": 3600,
        "request_id": stream.request_id,
    }
    assert heartbeat.event == "heartbeat"
    assert set(heartbeat.data) == {"timestamp", "topic"}
    assert heartbeat.at - stream.opened_at < AT_ONCE
    assert_well_formed(stream)


def test_case_134_only_what_comes_after(api: Client) -> None:
    publish(api, 1, first=1)
    with api.watch("mars", OD) as stream:
        publish(api, 1, first=2)
        event = stream.notification()
    assert event["data"]["payload"] == 2
    assert stream.frames[-1].event == "live-notification"
    assert stream.kinds == ["connection_established", "notification"]
    assert_well_formed(stream)


def test_case_135_replay(api: Client) -> None:
    publish(api, 3)
    stream = api.replay("mars", OD, from_id="1")
    assert_headers(stream)
    assert [frame.event for frame in stream.frames] == [
        "replay-control",
        *["replay"] * 3,
        "replay-control",
        "connection-closing",
    ]
    assert stream.frames[0].data | {"timestamp": ""} == {
        "type": "replay_started",
        "topic": TOPIC,
        "from_sequence": 1,
        "from_date": None,
        "batch_size": 100,
        "end_sequence": None,
        "to_date": None,
        "timestamp": "",
        "request_id": stream.request_id,
    }
    assert stream.frames[-2].data["type"] == "replay_completed"
    closing = stream.frames[-1].data
    assert closing["reason"] == "end_of_stream"
    assert closing["message"]
    assert closing["request_id"] == stream.request_id
    assert stream.ended
    assert_well_formed(stream)


def test_case_136_history_then_live(api: Client) -> None:
    publish(api, 2)
    with api.watch("mars", OD, from_id="1") as stream:
        stream.until("replay_completed")
        publish(api, 1, first=2)
        stream.notification()
    assert_headers(stream)
    assert stream.kinds == ["replay_started", "notification", "notification", "replay_completed", "notification"]
    assert stream.frames[0].kind == "replay_started"
    assert [frame.event for frame in stream.frames if frame.kind == "notification"] == [
        "replay",
        "replay",
        "live-notification",
    ]
    assert steps(stream) == [0, 1, 2]
    assert_well_formed(stream)


def compact(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()


def test_case_137_bytes_of_a_replay(api: Client) -> None:
    api.publish("mars", MARS, {"z": "é", "a": [1, {"y": None, "b": "x y"}]})
    publish(api, 4)
    stream = api.replay("mars", OD)
    assert stream.raw.count(b"\nevent: replay\ndata: ") == 5
    assert not re.search(rb"^(id|retry)?:", stream.raw, re.MULTILINE)
    assert b"\r" not in stream.raw
    for frame in stream.frames:
        assert frame.raw == b"event: " + frame.event.encode() + b"\ndata: " + compact(frame.data) + b"\n\n"
    assert b'"id":"mars@' in stream.raw
    assert '"payload":{"a":[1,{"b":"x y","y":null}],"z":"é"}'.encode() in stream.raw


def test_case_137_bytes_of_a_watch(api: Client) -> None:
    publish(api, 1)
    with api.watch("mars", OD, from_id="1") as stream:
        stream.until("replay_completed")
        api.publish("mars", MARS, "live")
        stream.notification()
    for frame in stream.frames:
        assert frame.raw == b"event: " + frame.event.encode() + b"\ndata: " + compact(frame.data) + b"\n\n"
    with api.watch("mars", OD) as stream:
        assert b'"type":"connection_established"' in stream.next().raw


def test_chunks_are_whole_frames_and_the_opening_is_alone(api: Client) -> None:
    """docs/decisions/0002: what is ready together may share a chunk, but no frame is split or held back."""
    publish(api, 3)
    stream = api.replay("mars", OD)
    chunks = [chunk for _, chunk in stream.chunks]
    assert chunks[0] == stream.frames[0].raw
    assert all(chunk.startswith(b"event: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert b"".join(chunks) == b"".join(frame.raw for frame in stream.frames)


def assert_cloud_event(event: dict[str, Any], event_type: str, identifier: dict[str, str], payload: Any) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.(\d{3}){1,3})?Z", event["time"])
    assert isinstance(event["sequence"], int)
    assert event == {
        "specversion": "1.0",
        "id": f"{event_type}@{event['sequence']}",
        "sequence": event["sequence"],
        "type": f"int.ecmwf.aviso.{event_type}",
        "source": "http://localhost:8000",
        "time": event["time"],
        "datacontenttype": "application/json",
        "dataschema": f"http://localhost:8000/schema/{event_type}",
        "data": {"identifier": identifier, "payload": payload},
    }


def test_case_138_cloud_event(api: Client) -> None:
    with api.watch("mars", OD) as mars, api.watch("dissemination", {**OD, "destination": "FOO"}) as dissemination:
        api.publish("mars", MARS, {"a": 1})
        api.publish("dissemination", DISSEMINATION, "x")
        live = mars.notification(), dissemination.notification()
    assert_cloud_event(live[0], "mars", MARS, {"a": 1})
    assert_cloud_event(live[1], "dissemination", DISSEMINATION, "x")
    assert api.replay("mars", OD).notifications == [live[0]]
    assert api.replay("dissemination", {**OD, "destination": "FOO"}).notifications == [live[1]]


CORRELATED = {"connection_established", "replay_started", "connection-closing", "error"}


def frames_of_all_kinds(api: Client) -> list[Frame]:
    publish(api, 1)
    with api.watch("mars", OD) as live, api.watch("mars", OD, from_id="1") as both:
        both.until("replay_completed")
        publish(api, 1)
        live.notification()
        both.notification()
    return [*live.frames, *both.frames, *api.replay("mars", OD).frames]


def test_case_139_request_id_only_where_listed(api: Client) -> None:
    for frame in frames_of_all_kinds(api):
        assert ("request_id" in frame.data) == (frame.kind in CORRELATED), frame


def test_case_140_timestamps(api: Client) -> None:
    frames = [frame for frame in frames_of_all_kinds(api) if frame.kind != "notification"]
    assert {frame.kind for frame in frames} == set(MEMBERS) - {"notification"}
    for frame in frames:
        assert SECONDS.fullmatch(frame.data["timestamp"])


def test_last_event_id_is_ignored(api: Client) -> None:
    publish(api, 3)
    headers = (("Content-Type", "application/json"), ("Last-Event-ID", "mars@2"))
    with api.open("watch", body("mars", OD), headers) as stream:
        publish(api, 1, first=9)
        assert stream.notification()["data"]["payload"] == 9


@pytest.mark.parametrize("start", [{}, {"from_id": "1"}], ids=["live", "history"])
def test_the_opening_is_sent_at_once(api: Client, start: dict[str, str]) -> None:
    publish(api, 2)
    asked = time.monotonic()
    with api.watch("mars", OD, **start) as stream:
        opening = stream.next()
        assert opening.kind == ("replay_started" if start else "connection_established")
        assert opening.at - asked < AT_ONCE
        if start:
            assert stream.until("replay_completed").at - opening.at < AT_ONCE


def test_heartbeat_directly_after_the_opening_of_a_watch_with_history(api: Client) -> None:
    with api.watch("mars", OD, from_id="1") as stream:
        assert stream.next().kind == "replay_started"
        assert stream.until("heartbeat").at - stream.opened_at < AT_ONCE


def test_case_145_slow_reader(api: Client) -> None:
    with api.open("watch", body("mars", OD), receive_buffer=4096) as stream:
        stream.until("connection_established")
        api.publish_many("mars", ((but(MARS, step=step), "x" * 20_000) for step in range(90)))
        while len(stream.notifications) < 90:
            stream.notification()
            time.sleep(0.002)
    assert steps(stream) == list(range(90))
    assert [event["sequence"] for event in stream.notifications] == list(
        range(stream.notifications[0]["sequence"], stream.notifications[0]["sequence"] + 90)
    )


def test_case_146_two_watches(api: Client) -> None:
    with api.watch("mars", OD) as one, api.watch("mars", OD) as other:
        publish(api, 10)
        for stream in (one, other):
            while len(stream.notifications) < 10:
                stream.notification()
            assert steps(stream) == list(range(10))


def test_case_152_reconnect(api: Client) -> None:
    publish(api, 2)
    with api.watch("mars", OD, from_id="1") as stream:
        stream.until("replay_completed")
        last = int(stream.notifications[-1]["id"].rpartition("@")[2])
    publish(api, 2, first=2)
    with api.watch("mars", OD, from_id=str(last + 1)) as stream:
        stream.until("replay_completed")
        publish(api, 2, first=4)
        for _ in range(2):
            stream.notification()
    assert payloads(stream) == [2, 3, 4, 5]


def test_a_client_that_closes_after_the_answer_is_told_so_and_nothing_else(api: Client) -> None:
    publish(api, 1)
    closes = (*JSON, ("Connection", "close"))
    with api.open("replay", body("mars", OD, from_id="1"), closes) as stream:
        stream.rest()
        assert [value for name, value in stream.headers if name == "connection"] == ["close"]
        assert len(stream.notifications) == 1
