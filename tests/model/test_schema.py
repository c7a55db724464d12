"""Event types: checking what is published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aviso_server.errors import InvalidRequest, PolygonTooLarge, UnknownEventType
from aviso_server.model.notification import Box
from aviso_server.model.schema import Catalogue, GenericType
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, event_type

NORTH: dict[str, Any] = {
    "region": "NORTH",
    "run_time": 12,
    "severity": "03",
    "anomaly": "42.50",
    "polygon": "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)",
}
ANY: dict[str, Any] = {"txt": "a", "num": 1, "exp": "1", "kind": "red", "off": "x", "offnum": 5}


def test_values_become_canonical() -> None:
    draft = EXTREME.check(NORTH, {"note": "seed-a", "a": [1.0]})
    assert draft.stream == "extreme_event"
    assert (
        draft.topic
        == "extreme_event.north.1200.3.42%2E5.(52%2E5,13%2E4,52%2E6,13%2E5,52%2E5,13%2E6,52%2E4,13%2E5,52%2E5,13%2E4)"
    )
    assert json.loads(draft.identifier) == {
        **NORTH,
        "region": "north",
        "run_time": "1200",
        "severity": "3",
        "anomaly": "42.5",
    }
    assert draft.payload == b'{"a":[1.0],"note":"seed-a"}'
    assert draft.box == Box(52.4, 13.4, 52.6, 13.6)


def test_the_stream_is_the_base_and_not_the_name() -> None:
    draft = POLYGON.check({"date": "2025-1-5", "time": "7", "polygon": SQUARE}, 1)
    assert (draft.stream, draft.topic) == ("polygon", "polygon.20250105.0700")


@pytest.mark.parametrize("name", list(NORTH))
def test_every_declared_field_must_be_published(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is missing for notify") as refusal:
        EXTREME.check({key: value for key, value in NORTH.items() if key != name})
    assert refusal.value.field == name


def test_a_default_does_not_stand_in_for_a_missing_field() -> None:
    versioned = event_type("v", {"expver": {"type": "ExpverHandler", "default": "1"}}, order=["expver"])
    assert versioned.check({"expver": ""}).topic == "v.0001"
    with pytest.raises(InvalidRequest, match="missing"):
        versioned.check({})


def test_unknown_fields_are_refused_first_and_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"Unknown field 'bogus'.*region, run_time") as refusal:
        EXTREME.check({"region": "nowhere", "bogus": 1})
    assert refusal.value.field == "bogus"


@pytest.mark.parametrize("value", [{"gte": 4}, None, [3], {}])
def test_only_scalars_are_published(value: object) -> None:
    with pytest.raises(InvalidRequest, match="Field 'severity'"):
        EXTREME.check({**NORTH, "severity": value})


def test_fields_outside_the_topic_are_kept() -> None:
    draft = PROBE.check(ANY)
    assert draft.topic == "probe.a.1.0001.red"
    assert json.loads(draft.identifier)["off"] == "x"
    assert json.loads(draft.identifier)["offnum"] == "5"


def test_a_published_star_is_stored_but_not_shown() -> None:
    draft = PROBE.check({**ANY, "txt": "*"})
    assert draft.topic == "probe.%2A.1.0001.red"
    assert "txt" not in json.loads(draft.identifier)


@pytest.mark.parametrize(
    ("required", "payload", "accepted"), [(True, None, False), (True, False, True), (False, None, True)]
)
def test_payload_presence(required: bool, payload: object, accepted: bool) -> None:
    mars = event_type("mars", {"class": "StringHandler"}, order=["class"])
    strict = type(mars)(name="m", fields=mars.fields, base="m", key_order=("class",), payload_required=required)
    if accepted:
        assert strict.check({"class": "od"}, payload).payload == (b"null" if payload is None else b"false")
    else:
        with pytest.raises(InvalidRequest, match="Payload is required") as refusal:
            strict.check({"class": "od"}, payload)
        assert refusal.value.field == "payload"


@pytest.mark.parametrize("payload", [0, 1.5, "", "text", [], {}, {"b": 1, "a": {"d": 1, "c": None}}])
def test_payloads_keep_type_and_value(payload: object) -> None:
    stored = PROBE.check(ANY, payload).payload
    assert json.loads(stored) == payload
    assert stored == json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()


def test_payloads_are_as_deep_as_the_published_client_can_read() -> None:
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    PROBE.check(ANY, nested(125))
    with pytest.raises(InvalidRequest, match="payload"):
        PROBE.check(ANY, nested(126))


def test_polygons_as_text_and_as_arrays() -> None:
    text = POLYGON.check({"date": "20250101", "time": "12", "polygon": " 0,0, 0,2, 2,2, 2,0, 0.0,0 "}, 1)
    array = POLYGON.check({"date": "20250101", "time": "12", "polygon": [[0, 0], [0, 2], [2, 2], [2.0, 0], [0, 0]]}, 1)
    assert json.loads(text.identifier)["polygon"] == " 0,0, 0,2, 2,2, 2,0, 0.0,0 "
    assert json.loads(array.identifier)["polygon"] == SQUARE
    assert text.box == array.box == Box(0, 0, 2, 2)


@pytest.mark.parametrize(
    "polygon", ["", "(0,0,1,0,0,0)", [[0, 0], [0, 2], [2, 2]], [[0, 0]] * 3, [0, 0], {"eq": 1}, None, True]
)
def test_bad_polygons_name_the_field(polygon: object) -> None:
    with pytest.raises(InvalidRequest, match="ield 'polygon'") as refusal:
        POLYGON.check({"date": "20250101", "time": "12", "polygon": polygon}, 1)
    assert refusal.value.field == "polygon"


@pytest.mark.parametrize("polygon", [",".join(["0,0"] * 10_001), [[0, 0]] * 10_001])
def test_polygons_that_are_too_large_are_told_from_those_that_are_wrong(polygon: object) -> None:
    with pytest.raises(PolygonTooLarge, match="polygon has 10001 coordinate pairs, maximum is 10000") as refusal:
        POLYGON.check({"date": "20250101", "time": "12", "polygon": polygon}, 1)
    assert refusal.value.field == "polygon"
    with pytest.raises(InvalidRequest) as other:
        POLYGON.check({"date": "20250101", "time": "12", "polygon": "(0,0,1,0,0,0)"}, 1)
    assert not isinstance(other.value, PolygonTooLarge)


def test_point_clouds() -> None:
    draft = CLOUD.check({"kind": "hail", "point_cloud": [[1, 1], [5, 5.5], [1, 1]]})
    assert json.loads(draft.identifier) == {"kind": "hail", "point_cloud": [[1.0, 1.0], [5.0, 5.5], [1.0, 1.0]]}
    assert draft.topic == "cloud.hail"
    assert draft.box == Box(1, 1, 5, 5.5)


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        ([], "contains 0 points"),
        ("1,1", "array"),
        ([[91, 0]], "latitude"),
        ([[0, 181]], "longitude"),
        ([[1, 2, 3]], "two numbers"),
        ([["1", "2"]], "number"),
        ([[True, 1]], "number"),
        ([[1, 1]] * 10_001, "point cloud contains 10001 points, maximum is 10000"),
        ([[1.123456789, 1.123456789]] * 5000, r"canonical JSON is \d+ bytes, maximum is 61440 bytes"),
    ],
)
def test_bad_point_clouds(cloud: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"field 'point_cloud'.*{words}"):
        CLOUD.check({"kind": "hail", "point_cloud": cloud})


def test_generic_events() -> None:
    draft = GenericType("news").check({"b": 5.0, "a": "x.y", "c": True, "d": "*"})
    assert (draft.stream, draft.topic) == ("news", "news.x%2Ey.5%2E0.true.%2A")
    assert json.loads(draft.identifier) == {"a": "x.y", "b": "5.0", "c": "true"}
    assert GenericType("news").check({}).topic == "news"


@pytest.mark.parametrize("value", ["", None, [], {}, {"eq": 1}])
def test_generic_values_are_non_empty_scalars(value: object) -> None:
    with pytest.raises(InvalidRequest, match="Field 'a'"):
        GenericType("news").check({"a": value})


@pytest.mark.parametrize("name", ["", "a.b", "a%b", "a*b", "a>b", "a b", "é", "_a", "-a", "a\n"])
def test_generic_names(name: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        GenericType(name)
    assert refusal.value.field == "event_type"


def test_the_catalogue() -> None:
    strict = Catalogue({"test_polygon": POLYGON, "probe": PROBE})
    assert strict.find("probe") is PROBE
    for unknown in ("Probe", "polygon", ""):
        with pytest.raises(UnknownEventType) as refusal:
            strict.find(unknown)
        assert refusal.value.configured == ["probe", "test_polygon"]
    assert Catalogue({"probe": PROBE}, strict=False).find("other") == GenericType("other")
    assert strict.of_stream("POLYGON") is strict.of_stream("Test_Polygon") is strict.of_stream("polygon") is POLYGON
    assert strict.of_stream("nope") is None
