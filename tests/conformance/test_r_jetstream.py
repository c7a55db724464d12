"""R. The jetstream backend: what is on the broker, and who else can work with it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.model.shapes import polygon_from_pairs, wkb
from tests.conformance.configuration import changed, conformance
from tests.conformance.expectations import payloads
from tests.conformance.samples import DISSEMINATION, MARS, POLYGON, PROBE, SQ, P, Q, but, pairs
from tests.harness import Server
from tests.harness.broker import ask, publish, single, stored, wait_until
from tests.harness.client import JSON, body

OD = {"class": "od"}
POLYGON_JS = {
    "payload": {"required": True},
    "topic": {"base": "polygon_js_test", "key_order": ["date", "time"]},
    "identifier": {
        "date": {"type": "DateHandler", "canonical_format": "%Y%m%d", "required": False},
        "time": {"type": "TimeHandler", "required": False},
        "polygon": {"type": "PolygonHandler", "required": True},
    },
}
CLOUD = {
    "topic": {"base": "cloud", "key_order": ["network"]},
    "identifier": {
        "network": {"type": "StringHandler", "required": False},
        "point_cloud": {"type": "PointCloudHandler", "required": True},
    },
}
POLICY = {
    "retention_time": "7d",
    "max_messages": 5000,
    "max_size": "64Mi",
    "allow_duplicates": True,
    "compression": True,
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with single(tmp_path / "broker") as broker:
        yield broker


@contextmanager
def serving(
    broker: LocalBroker, directory: Path, schema: Mapping[str, Any] | None = None, **backend: Any
) -> Iterator[Server]:
    """A server on the broker; event types keep only the newest of a topic unless `schema` says otherwise."""
    changes = {
        "notification_backend": {"jetstream": {"nats_url": broker.url, **backend}},
        "notification_schema": schema or {},
    }
    configuration = changed(conformance("jetstream"), changes)
    for name, entry in configuration["notification_schema"].items():
        if "storage_policy" not in (schema or {}).get(name, {}):
            entry.pop("storage_policy", None)
    with Server(configuration, directory) as server:
        yield server


KEEP = {"mars": {"storage_policy": {"allow_duplicates": True}}}


def config_of(broker: LocalBroker, stream: str) -> dict[str, Any]:
    config: dict[str, Any] = ask(broker.url, f"STREAM.INFO.{stream}")["config"]
    return config


def test_case_228_first_publish_makes_the_stream(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server", {"polygon_js": POLYGON_JS}) as server:
        assert ask(broker.url, "STREAM.NAMES").get("total") == 0
        server.client.publish("polygon_js", POLYGON, "x")
    config = config_of(broker, "POLYGON_JS_TEST")
    assert config["subjects"] == ["polygon_js_test.>"]
    assert (config["max_msgs_per_subject"], config["storage"], config["retention"]) == (1, "file", "limits")
    assert (config["discard"], config["max_msgs"], config["max_bytes"], config["max_age"]) == ("old", -1, -1, 0)


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_case_228_so_does_reading(broker: LocalBroker, tmp_path: Path, operation: str) -> None:
    with serving(broker, tmp_path / "server") as server:
        if operation == "watch":
            server.client.watch("mars", OD).close()
        else:
            server.client.replay("mars", OD)
        assert ask(broker.url, "STREAM.NAMES")["streams"] == ["MARS"]


def test_case_229_policy_over_defaults(broker: LocalBroker, tmp_path: Path) -> None:
    schema = {"polygon_js": {**POLYGON_JS, "storage_policy": POLICY}}
    defaults = {"max_messages": 5, "max_bytes": 2048, "retention_time": "1h"}
    with serving(broker, tmp_path / "server", schema, **defaults) as server:
        server.client.publish("polygon_js", POLYGON, "x")
        server.client.publish("mars", MARS, "x")
    config = config_of(broker, "POLYGON_JS_TEST")
    assert config["max_age"] == 604_800 * 10**9
    assert (config["max_msgs"], config["max_bytes"]) == (5000, 67_108_864)
    assert (config["max_msgs_per_subject"], config["compression"]) == (-1, "s2")
    mars = config_of(broker, "MARS")
    assert (mars["max_msgs"], mars["max_bytes"], mars["max_age"]) == (5, 2048, 3600 * 10**9)
    assert (mars["max_msgs_per_subject"], mars["compression"]) == (1, "none")


def test_a_policy_finds_its_stream_in_any_case(broker: LocalBroker, tmp_path: Path) -> None:
    schema = {"polygon_js": changed(POLYGON_JS, {"topic": {"base": "Poly"}, "storage_policy": {"max_messages": 7}})}
    with serving(broker, tmp_path / "server", schema) as server:
        server.client.publish("polygon_js", POLYGON, "x")
        assert payloads(server.client.replay("polygon_js", {"polygon": P})) == ["x"]
    config = config_of(broker, "POLY")
    assert (config["subjects"], config["max_msgs"]) == (["Poly.>"], 7)


def test_an_existing_stream_is_brought_in_line(broker: LocalBroker, tmp_path: Path) -> None:
    old = {"name": "MARS", "subjects": ["mars.>"], "max_msgs": 10, "max_msgs_per_subject": 1, "description": "old"}
    ask(broker.url, "STREAM.CREATE.MARS", {**old, "storage": "file"})
    with serving(broker, tmp_path / "server", {"mars": {"storage_policy": POLICY}}, discard_policy="new") as server:
        server.client.publish("mars", MARS, "x")
        wait_until(lambda: "backend.jetstream.stream.reconcile.succeeded" in server.stdout)
    config = config_of(broker, "MARS")
    assert (config["max_msgs"], config["max_bytes"], config["max_msgs_per_subject"]) == (5000, 67_108_864, -1)
    assert (config["compression"], config["discard"], config["max_age"]) == ("s2", "new", 604_800 * 10**9)
    assert config["description"] == "old"


def assert_refused(server: Server, words: str) -> None:
    """Nothing can be published to, watched or replayed from the stream of `mars`, and the answer says why."""
    answers = {
        "publish": server.client.notify("mars", MARS, "x"),
        "watch": server.client.answer("watch", body("mars", OD)),
        "watch from the past": server.client.answer("watch", body("mars", OD, from_id="1")),
        "replay": server.client.answer("replay", body("mars", OD, from_id="1")),
    }
    for operation, answer in answers.items():
        assert (operation, answer.status) == (operation, 500)
        assert words in answer.json()["details"], operation


@pytest.mark.parametrize(("there", "wanted"), [("memory", "file"), ("file", "memory")])
def test_case_n13_another_storage_type(broker: LocalBroker, tmp_path: Path, there: str, wanted: str) -> None:
    """Nobody is acknowledged under other terms than configured, and the stream stays as it is."""
    plain = {"name": "MARS", "subjects": ["mars.>"], "storage": there, "max_msgs": 10}
    assert "error" not in ask(broker.url, "STREAM.CREATE.MARS", plain)
    publish(broker.url, ("mars.x", b"1", None))
    with serving(broker, tmp_path / "server", KEEP, storage_type=wanted) as server:
        assert_refused(server, "storage mismatch")
        wait_until(lambda: "backend.jetstream.stream.unusable" in server.stdout)
        server.client.publish("dissemination", DISSEMINATION, "other streams are not concerned")
        listed = server.client.get("/api/v1/streams").json()["streams"]
        assert [(each["stream"], each["count"]) for each in listed] == [("diss", 1)]
        assert server.client.get("/api/v1/admin/overview").status == 200
    config = config_of(broker, "MARS")
    assert (config["storage"], config["max_msgs"]) == (there, 10)


def test_case_n13_an_update_that_the_broker_refuses(broker: LocalBroker, tmp_path: Path) -> None:
    """One broker alone cannot keep three replicas."""
    ask(broker.url, "STREAM.CREATE.MARS", {"name": "MARS", "subjects": ["mars.>"], "max_msgs": 10})
    with serving(broker, tmp_path / "server", KEEP, replicas=3) as server:
        assert_refused(server, "num_replicas")
        wait_until(lambda: "backend.jetstream.stream.reconcile.failed" in server.stdout)
    assert (config_of(broker, "MARS")["max_msgs"], config_of(broker, "MARS")["num_replicas"]) == (10, 1)


def test_case_n13_made_anew_behind_our_back(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server", KEEP) as server:
        assert payloads(server.client.replay("mars", OD)) == []
        ask(broker.url, "STREAM.DELETE.MARS")
        ask(broker.url, "STREAM.CREATE.MARS", {"name": "MARS", "subjects": ["mars.>"], "storage": "memory"})
        answer = server.client.answer("replay", body("mars", OD, from_id="1"))
        assert (answer.status, "storage mismatch" in answer.json()["details"]) == (500, True)
        assert_refused(server, "storage mismatch")


def test_case_n11_a_broker_that_was_away_for_long(broker: LocalBroker, tmp_path: Path) -> None:
    """With everything at its default but the pauses, which are short: many more attempts than 0.7.1 would have made."""
    pauses = {"reconnect_delay_ms": 20, "publish_retry_attempts": 2}
    with (
        serving(broker, tmp_path / "server", KEEP, **pauses, enable_auto_reconnect=False) as server,
        server.client.watch("mars", OD) as watch,
    ):
        assert "enable_auto_reconnect" in server.stdout, "a key that has no effect is worth a warning"
        watch.until("connection_established")
        server.client.publish("mars", MARS, "before")
        assert watch.notification()["data"]["payload"] == "before"
        broker.stop()
        for _ in range(10):  # each takes longer than five attempts to connect
            assert server.client.notify("mars", MARS, "lost").status == 500
        assert server.client.get("/ready").status == 503
        assert server.client.get("/health").status == 200
        broker.start()
        publish(broker.url, ("mars.od.0001.g.20250706.1200.enfo.1", b'"from another server"', None))
        wait_until(lambda: server.client.get("/ready").status == 200)
        server.client.publish("mars", MARS, "after")
        expected = ["before", "from another server", "after"]
        assert [watch.notification()["data"]["payload"] for _ in range(2)] == expected[1:]
        assert payloads(server.client.replay("mars", OD)) == expected


def test_case_230_newest_of_a_subject(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server") as server:
        for payload in ("first", "second", "third"):
            server.client.publish("mars", MARS, payload)
        (event,) = server.client.replay("mars", OD).notifications
    assert (event["data"]["payload"], event["sequence"]) == ("third", 3)


def test_case_231_from_date(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server", KEEP) as server:
        server.client.publish("mars", MARS, "old")
        time.sleep(1.1)
        between = str(int(time.time() * 1000))
        time.sleep(0.1)
        server.client.publish("mars", MARS, "new")
        assert payloads(server.client.replay("mars", OD, from_date=between)) == ["new"]


def test_case_232_233_234_live(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server", KEEP) as server:
        client = server.client
        client.publish("mars", MARS, "before")
        with client.watch("mars", OD) as one, client.watch("mars", OD) as other:
            one.until("connection_established")
            other.until("connection_established")
            assert payloads(client.replay("mars", OD)) == ["before"]
            client.publish_many("mars", [(but(MARS, step=step), step) for step in range(20)])
            for stream in (one, other):
                assert [stream.notification()["data"]["payload"] for _ in range(20)] == list(range(20))
        wait_until(lambda: ask(broker.url, "CONSUMER.LIST.MARS")["total"] == 1, seconds=5)
    wait_until(lambda: ask(broker.url, "CONSUMER.LIST.MARS")["total"] == 0, seconds=5)


def test_case_235_on_the_wire(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server") as server:
        server.client.publish("dissemination", but(DISSEMINATION, target="target.v1*"), {"a": 1})
        server.client.publish("test_polygon", POLYGON, "text")
    subject, body, headers = stored(broker.url, "DISS", 1)
    assert subject.startswith("diss.FOO.target%2Ev1%2A.")
    assert body == b'{"a":1}'
    assert not {"spatial_bbox", "spatial_geometry"} & set(headers)
    subject, body, headers = stored(broker.url, "POLYGON", 1)
    assert (subject, body) == ("polygon.20250706.1200", b'"text"')
    assert headers["spatial_bbox"] == "52.4,13.4,52.6,13.6"
    assert headers["spatial_geometry"] == "[[52.5,13.4],[52.6,13.5],[52.5,13.6],[52.4,13.5],[52.5,13.4]]"


def test_a_long_topic_is_the_subject_as_long_as_a_broker_takes_it(broker: LocalBroker, tmp_path: Path) -> None:
    """0.13.1 reads the subject only; a polygon of fifty corners in `key_order` has more than 1,024 bytes."""
    with serving(broker, tmp_path / "server") as server:
        sent = [but(MARS, stream="x" * length) for length in (1_000, 3_900, 3_950, 5_000)]
        for identifier in sent:
            server.client.publish("mars", identifier)
        seen = server.client.replay("mars", {"class": "od"}).notifications
        assert [event["data"]["identifier"]["stream"] for event in seen] == [each["stream"] for each in sent]
    subjects = [stored(broker.url, "MARS", sequence)[0] for sequence in (1, 2, 3, 4)]
    assert [subject.split(".")[6] for subject in subjects[:2]] == ["x" * 1_000, "x" * 3_900]
    assert [len(subject) < 100 for subject in subjects] == [False, False, True, True]


@pytest.mark.parametrize("name", ["mars", "MARS", "Mars"])
def test_case_236_wipe_in_any_case(broker: LocalBroker, tmp_path: Path, name: str) -> None:
    ask(broker.url, "STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["somebody.else.>"]})
    publish(broker.url, ("somebody.else.x", b"theirs", None))
    with serving(broker, tmp_path / "server", KEEP) as server:
        server.client.publish("mars", MARS, "x")
        assert server.client.delete("/api/v1/admin/wipe/stream", {"stream_name": name}).status == 200
        assert server.client.replay("mars", OD).notifications == []
        server.client.publish("mars", MARS, "y")
        assert [event["sequence"] for event in server.client.replay("mars", OD).notifications] == [2]
        server.client.wipe_all()
    assert ask(broker.url, "STREAM.INFO.OTHER")["state"]["messages"] == 1


@pytest.mark.parametrize("base", ["_weather", "weather%2Ev1"])
def test_streams_under_names_that_are_refused_today(broker: LocalBroker, tmp_path: Path, base: str) -> None:
    """Older releases took any topic base: an administrator can still empty what they left behind."""
    name = base.upper()
    ask(broker.url, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{base}.>"]})
    publish(broker.url, *[(f"{base}.value", b"{}", None)] * 3)
    with serving(broker, tmp_path / "server") as server:

        def left() -> int:
            count: int = ask(broker.url, f"STREAM.INFO.{name}")["state"]["messages"]
            return count

        path = f"/api/v1/admin/notification/{quote(base.lower(), safe='')}@1"
        assert [server.client.delete(path).status for _ in range(2)] == [200, 404]
        assert left() == 2
        assert server.client.delete("/api/v1/admin/wipe/stream", {"stream_name": base.lower()}).status == 200
        assert left() == 0
        publish(broker.url, (f"{base}.value", b"{}", None))
        server.client.wipe_all()
        assert left() == 0


def test_case_237_restart(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server", KEEP) as server:
        server.client.publish_many("mars", [(but(MARS, step=step), step) for step in range(5)])
        before = server.client.replay("mars", OD).notifications
        server.restart()
        assert server.client.replay("mars", OD).notifications == before
        server.stop()
        broker.kill()
        broker.start()
        server.start()
        assert server.client.replay("mars", OD).notifications == before
        server.client.publish("mars", MARS, "next")
        assert server.client.replay("mars", OD).notifications[-1]["sequence"] == 6


REFERENCE = {"name": "POLYGON", "subjects": ["polygon.>"], "max_msgs_per_subject": -1, "storage": "file"}
BOX = {"spatial_bbox": "52.4,13.4,52.6,13.6", "spatial_geometry": P}


def test_data_of_the_reference_server(broker: LocalBroker, tmp_path: Path) -> None:
    """Start on streams that another server has written, read, publish, and leave them readable for it."""
    ask(broker.url, "STREAM.CREATE.POLYGON", REFERENCE)
    publish(
        broker.url,
        ("polygon.20250706.1200", b'{"b": 1,\n "a": "\xc3\xbc"}', BOX),
        ("polygon.20250706.%2A", b'"text"', BOX),
        ("polygon.20250706.1300", b"no json \xff", BOX),
        ("polygon.20250706.1400", b"", {"spatial_bbox": "0,0,1,1"}),
    )
    schema = {"test_polygon": {"storage_policy": {"allow_duplicates": True}}}
    with serving(broker, tmp_path / "server", schema) as server:
        events = server.client.replay("test_polygon", {"point": "52.55,13.5"}).notifications
        assert [event["sequence"] for event in events] == [1, 2, 3]
        assert events[0]["data"]["identifier"] == {"date": "20250706", "time": "1200", "polygon": pairs(P)}
        assert events[1]["data"]["identifier"] == {"date": "20250706", "polygon": pairs(P)}
        assert [event["data"]["payload"] for event in events] == [{"a": "ü", "b": 1}, "text", "no json \ufffd"]
        server.client.publish("test_polygon", but(POLYGON, time="1500"), [1])
        ours = server.client.replay("test_polygon", {"polygon": P}, from_id="4").notifications
        assert [(event["id"], event["data"]["identifier"]["time"]) for event in ours] == [("test_polygon@5", "1500")]
    subject, body, headers = stored(broker.url, "POLYGON", 5)
    assert (subject, body) == ("polygon.20250706.1500", b"[1]")
    assert json.loads(headers["spatial_geometry"]) == pairs(P)


IN_ORDER = changed(POLYGON_JS, {"topic": {"base": "inorder", "key_order": ["date", "polygon"]}})


def older(polygon: str) -> dict[str, str]:
    """The headers that 0.7.1 writes."""
    return {"spatial_bbox": box_around(polygon), "spatial_geometry": polygon}


def newest(polygon: str) -> dict[str, str]:
    """The headers that 0.13.1 writes."""
    return {"spatial_bbox": box_around(polygon), "spatial_geometry": json.dumps(pairs(polygon), separators=(",", ":"))}


def box_around(polygon: str) -> str:
    lats, lons = zip(*pairs(polygon), strict=True)
    return f"{min(lats):g},{min(lons):g},{max(lats):g},{max(lons):g}"


def token(text: str) -> str:
    return text.replace(".", "%2E")


def arrow_shapes(server: Server, event_type: str) -> list[bytes]:
    request = {"event_type": event_type, "identifier": {"point": "52.55,13.5"}, "from_id": "1"}
    answer = server.client.answer("replay", request, (*JSON, ("Accept", "application/vnd.apache.arrow.stream")))
    found: list[bytes] = pa.ipc.open_stream(answer.body).read_all().column("polygon").to_pylist()
    return found


@pytest.mark.parametrize("in_order", [False, True], ids=["polygon in headers", "polygon in the subject too"])
def test_case_n12_polygons_as_text_and_as_json(broker: LocalBroker, tmp_path: Path, in_order: bool) -> None:
    """A stream that 0.7.1 and 0.13.1 have filled: filters find all, live too, and what we add looks like 0.13.1's."""
    schema = {"area": {**(IN_ORDER if in_order else POLYGON_JS), "storage_policy": {"allow_duplicates": True}}}
    base = "inorder" if in_order else "polygon_js_test"
    ask(broker.url, f"STREAM.CREATE.{base.upper()}", {"name": base.upper(), "subjects": [f"{base}.>"]})

    def message(style: Callable[[str], dict[str, str]], polygon: str, body: bytes) -> tuple[str, bytes, dict[str, str]]:
        headers = style(polygon)
        last = token(headers["spatial_geometry"]) if in_order else "1200"
        return f"{base}.20250706.{last}", body, headers

    publish(
        broker.url,
        message(older, P, b'"0.7.1"'),
        message(newest, P, b'"0.13.1"'),
        message(older, Q, b'"far"'),
        message(newest, Q, b'"far"'),
    )
    with serving(broker, tmp_path / "server", schema) as server:
        for wanted in ({"polygon": P}, {"point": "52.55,13.5"}, {"polygon": pairs(P)}):
            stream = server.client.replay("area", wanted)
            assert payloads(stream) == ["0.7.1", "0.13.1"]
            assert [event["data"]["identifier"]["polygon"] for event in stream.notifications] == [pairs(P)] * 2
        one, other = arrow_shapes(server, "area")
        assert one == other == wkb(polygon_from_pairs(pairs(P)))
        for wanted in ({"polygon": P}, {"point": "52.55,13.5"}):
            with server.client.watch("area", wanted) as watch:
                watch.until("connection_established")
                publish(broker.url, message(newest, Q, b"0"), message(older, P, b"1"), message(newest, P, b"2"))
                assert [watch.notification()["data"]["payload"] for _ in range(2)] == [1, 2]
        server.client.publish("area", POLYGON, "ours")
        last = server.client.replay("area", {"polygon": P}).notifications[-1]
        assert last["data"] == {"identifier": but(POLYGON, polygon=pairs(P)), "payload": "ours"}
    subject, _, headers = stored(broker.url, base.upper(), last["sequence"])
    expected = message(newest, P, b"")
    assert subject == expected[0]
    assert {name: headers[name] for name in expected[2]} == expected[2]


GEOMETRIES = {
    "object": {"type": "Polygon", "coordinates": [[[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]]]},
    "open ring": {"type": "Polygon", "coordinates": [[[0, 0], [0, 2], [2, 2], [2, 0]]]},
    "text": SQ,
    "array in text": "[[0,0],[0,2],[2,2],[2,0],[0,0]]",
}


def test_case_171_geometry_in_the_payload(broker: LocalBroker, tmp_path: Path) -> None:
    """Other servers may store a notification without its polygon: its payload may have it for points."""
    ask(broker.url, "STREAM.CREATE.POLYGON", REFERENCE)
    useless = [5, "x", {"type": "Point", "coordinates": [1, 1]}, {"coordinates": None}, [[[0, 0]]]]
    given = [*GEOMETRIES.values(), *useless]
    bodies = [json.dumps({"spatial_geometry": geometry}).encode() for geometry in given]
    publish(broker.url, *[("polygon.20250706.1200", body, None) for body in bodies])
    schema = {"test_polygon": {"storage_policy": {"allow_duplicates": True}}}
    with serving(broker, tmp_path / "server", schema) as server:
        inside = server.client.replay("test_polygon", {"point": "1,1"}).notifications
        assert [event["data"]["payload"]["spatial_geometry"] for event in inside] == list(GEOMETRIES.values())
        assert server.client.replay("test_polygon", {"point": "1,3"}).notifications == []
        assert server.client.replay("test_polygon", {"polygon": SQ}).notifications == []


def test_large_shapes(broker: LocalBroker, tmp_path: Path) -> None:
    """Shapes of 61,440 bytes fit into the headers, as with the reference server."""
    ring = [[1.5, 1.25]] + [[1.25, 1.25]] * 5_118 + [[1.5, 1.25]]
    assert len(json.dumps(ring, separators=(",", ":"))) == 61_439
    schema = {"area": IN_ORDER, "cloud": CLOUD}
    with serving(broker, tmp_path / "server", schema) as server:
        server.client.publish("area", but(POLYGON, polygon=ring), "large")
        server.client.publish("cloud", {"network": "synop", "point_cloud": ring}, "large")
        for event_type, field in (("area", "polygon"), ("cloud", "point_cloud")):
            (event,) = server.client.replay(event_type, {"polygon": SQ}).notifications
            assert event["data"]["identifier"][field] == ring


def test_malformed_geometry_is_told_and_does_not_count(broker: LocalBroker, tmp_path: Path) -> None:
    ask(broker.url, "STREAM.CREATE.POLYGON", REFERENCE)

    def message(geometry: str, body: bytes) -> tuple[str, bytes, dict[str, str]]:
        return "polygon.20250706.1200", body, {"spatial_bbox": "0,0,1,1", "spatial_geometry": geometry}

    bad = [message("invalid", b"0"), message("[[0,0],[0,1],[1,1]]", b"0")]
    good = message("[[0.0,0.0],[0.0,1.0],[1.0,1.0],[0.0,0.0]]", b"1")
    publish(broker.url, bad[0], good, bad[1], good, bad[0])
    schema = {
        "test_polygon": {
            "identifier": {"polygon": {"required": False}},
            "max_historical_notifications": 2,
            "storage_policy": {"allow_duplicates": True},
        }
    }
    with serving(broker, tmp_path / "server", schema) as server:
        stream = server.client.replay("test_polygon", {"date": "20250706"})
        kinds = ["replay_started", "error", "notification", "error", "notification", "error", "replay_completed"]
        assert stream.kinds == [*kinds, "connection-closing"]
        errors = [frame.data for frame in stream.frames if frame.event == "error"]
        assert [error["sequence"] for error in errors] == [1, 3, 5]
        assert {error["error"] for error in errors} == {"CloudEvent creation failed"}
        assert {error["topic"] for error in errors} == {"polygon.20250706.1200"}
        assert {error["request_id"] for error in errors} == {stream.frames[0].data["request_id"]}
        assert "'invalid'" in errors[0]["message"]
        assert payloads(server.client.replay("test_polygon", {"polygon": SQ})) == [1, 1], "none of them lies anywhere"
        with server.client.watch("test_polygon", {"date": "20250706"}) as watch:
            watch.until("connection_established")
            publish(broker.url, good, bad[0], good)
            watch.notification()
            error = watch.until("error").data
            assert (error["error"], error["sequence"]) == ("CloudEvent creation failed", 7)
            assert watch.notification()["sequence"] == 8
        publish(broker.url, good)
        assert server.client.replay("test_polygon", {"date": "20250706"}).kinds[-2:] == [
            "notification_replay_limit_reached",
            "connection-closing",
        ]


def test_topics_of_another_layout_never_match(broker: LocalBroker, tmp_path: Path) -> None:
    ask(broker.url, "STREAM.CREATE.POLYGON", REFERENCE)
    odd = [("polygon.20250706", b"1", BOX), ("polygon.20250706.1200.x", b"2", BOX), ("polygon.20250706.%ZZ", b"3", BOX)]
    publish(broker.url, *odd, ("polygon.20250706.1200", b"4", BOX))
    schema = {"test_polygon": {"storage_policy": {"allow_duplicates": True}}}
    with serving(broker, tmp_path / "server", schema) as server:
        for wanted in ({"polygon": P}, {"polygon": P, "date": "20250706"}):
            assert payloads(server.client.replay("test_polygon", wanted)) == [4]
        with server.client.watch("test_polygon", {"polygon": P}) as watch:
            watch.until("connection_established")
            publish(broker.url, *odd, ("polygon.20250706.1300", b"5", BOX))
            assert watch.notification()["id"] == "test_polygon@8"


def test_fields_outside_the_topic_are_kept(broker: LocalBroker, tmp_path: Path) -> None:
    with serving(broker, tmp_path / "server") as server:
        server.client.publish("probe", PROBE, "x")
        (event,) = server.client.replay("probe", {"off": PROBE["off"]}).notifications
        assert event["data"]["identifier"]["offnum"] == PROBE["offnum"]


@pytest.mark.parametrize("text", ["two words", "tab\there", "line\nbreak", "100%", "a%20b", "ü ☃", "x" * 3000])
def test_values_that_are_no_subject(broker: LocalBroker, tmp_path: Path, text: str) -> None:
    with serving(broker, tmp_path / "server") as server, server.client.watch("mars", OD) as watch:
        watch.until("connection_established")
        server.client.publish("mars", but(MARS, stream=text), "x")
        assert watch.notification()["data"]["identifier"]["stream"] == text
        assert payloads(server.client.replay("mars", {**OD, "stream": text})) == ["x"]


def test_no_broker(tmp_path: Path) -> None:
    with single(tmp_path / "broker") as broker:
        url = broker.url
    backend = {"jetstream": {"nats_url": url, "retry_attempts": 2, "reconnect_delay_ms": 100}}
    configuration = changed(conformance("jetstream"), {"notification_backend": backend})
    server = Server(configuration, tmp_path / "server")
    with pytest.raises(Exception, match=r"startup\.backend\.failed") as failure:
        server.start()
    assert str(failure.value).count("backend.jetstream.connection.retry") == 2
    assert url in str(failure.value)
