"""R. The jetstream backend: what is on the broker, and who else can work with it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.conformance.configuration import changed, conformance
from tests.conformance.expectations import payloads
from tests.conformance.samples import DISSEMINATION, MARS, POLYGON, PROBE, P, but
from tests.harness import Server
from tests.harness.broker import ask, publish, single, stored, wait_until

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


def test_an_update_that_the_broker_rejects_is_only_logged(broker: LocalBroker, tmp_path: Path) -> None:
    ask(broker.url, "STREAM.CREATE.MARS", {"name": "MARS", "subjects": ["mars.>"], "max_msgs": 10})
    with serving(broker, tmp_path / "server", KEEP, replicas=3) as server:
        server.client.publish("mars", MARS, "x")
        wait_until(lambda: "backend.jetstream.stream.reconcile.failed" in server.stdout)
    assert (config_of(broker, "MARS")["max_msgs"], config_of(broker, "MARS")["num_replicas"]) == (10, 1)


def test_publishing_works_where_following_does_not(broker: LocalBroker, tmp_path: Path) -> None:
    """A work queue cannot be watched by several; that is no reason to refuse a notification."""
    with serving(broker, tmp_path / "server", KEEP, retention_policy="workqueue") as server:
        server.client.publish("mars", MARS, "x")
        assert payloads(server.client.replay("mars", OD)) == ["x"]
        assert server.client.answer("watch", {"event_type": "mars", "identifier": OD}).status == 500
        assert "retention policy 'workqueue'" in server.stdout


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
    assert (headers["spatial_bbox"], headers["spatial_geometry"]) == ("52.4,13.4,52.6,13.6", P)


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
        assert events[0]["data"]["identifier"] == {"date": "20250706", "time": "1200", "polygon": P}
        assert events[1]["data"]["identifier"] == {"date": "20250706", "polygon": P}
        assert [event["data"]["payload"] for event in events] == [{"a": "ü", "b": 1}, "text", "no json \ufffd"]
        server.client.publish("test_polygon", but(POLYGON, time="1500"), [1])
        ours = server.client.replay("test_polygon", {"polygon": P}, from_id="4").notifications
        assert [(event["id"], event["data"]["identifier"]["time"]) for event in ours] == [("test_polygon@5", "1500")]
    subject, body, headers = stored(broker.url, "POLYGON", 5)
    assert (subject, body) == ("polygon.20250706.1500", b"[1]")
    assert headers["spatial_geometry"] == P


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
