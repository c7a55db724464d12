"""Event types: their definitions, what they accept, and that they pickle."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from aviso_server.errors import (
    InvalidRequest,
    PolygonTooLarge,
    UnknownEventType,
)
from aviso_server.model.event_type import Catalogue, GenericType, Operation, build_event_type, read_point
from aviso_server.model.fields import FIELD_TYPES
from aviso_server.model.notification import Box
from aviso_server.model.shapes import Point
from aviso_server.model.times import Span
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, event_type, stored

TEXT = {"type": "StringHandler", "required": True}
POLYGON_FIELD = {"type": "PolygonHandler", "required": True}
CLOUD_FIELD = {"type": "PointCloudHandler", "required": True}


def problems(definition: dict[str, Any]) -> list[tuple[str, str]]:
    built, found = build_event_type("mars", definition)
    assert (built is None) == bool(found)
    assert all(problem.accepted for problem in found), "every problem says what is accepted"
    return [(problem.key, f"{problem.message} {problem.accepted}") for problem in found]


def test_a_full_definition() -> None:
    built, found = build_event_type(
        "dissemination",
        {
            "payload": {"required": True},
            "topic": {"base": "diss", "key_order": ["b", "a"]},
            "identifier": {"a": TEXT, "b": {"type": "IntHandler", "required": False, "range": [1, 7]}},
            "storage_policy": {"max_messages": 5},
            "auth": {"required": False},
            "max_historical_notifications": 3,
        },
    )
    assert found == []
    assert built is not None
    assert (built.name, built.base, built.key_order) == ("dissemination", "diss", ("b", "a"))
    assert built.payload_required is True
    assert built.max_historical_notifications == 3


def test_without_topic_the_name_is_the_base_and_keys_are_sorted() -> None:
    built, _ = build_event_type("mars", {"identifier": {"b": TEXT, "a": TEXT}})
    assert built is not None
    assert (built.base, built.key_order) == ("mars", ("a", "b"))
    assert built.payload_required is None


@pytest.mark.parametrize(
    ("identifier", "key", "words"),
    [
        (None, "identifier", "must be present"),
        ([], "identifier", "must be present"),
        ({"a": "StringHandler"}, "identifier.a", "a mapping with type and required"),
        ({"a": {"required": True}}, "identifier.a.type", "must be present StringHandler, "),
        ({"a": {"type": "Nope", "required": True}}, "identifier.a.type", "'Nope'"),
        ({"a": {"type": "StringHandler"}}, "identifier.a.required", "must be present true or false"),
        ({"a": {**TEXT, "max_lenght": 5}}, "identifier.a.max_lenght", "unknown key type, required, description"),
        ({"a": {**TEXT, "max_length": "x"}}, "identifier.a.max_length", "a whole number"),
        ({"a": {**TEXT, "max_length": 0}}, "identifier.a.max_length", "1 or more"),
        ({"a": {**TEXT, "max_length": 10**26}}, "identifier.a.max_length", "64 bits"),
        ({"a": {**TEXT, "required": "maybe"}}, "identifier.a.required", "'maybe' is neither true nor false"),
        ({"a": {**TEXT, "required": None}}, "identifier.a.required", "true or false"),
        ({"a": {**TEXT, "required": {}}}, "identifier.a.required", "true or false"),
        ({"a": {"type": "EnumHandler", "required": True}}, "identifier.a.values", "must be present a list of texts"),
        (
            {"a": {"type": "EnumHandler", "required": True, "values": ["x", {"y": 1}]}},
            "identifier.a.values[1]",
            "a list of texts",
        ),
        ({"a": {"type": "IntHandler", "required": True, "range": [7, 1]}}, "identifier.a.range", "min <= max"),
        ({"a": {"type": "FloatHandler", "required": True, "range": [2.5, 1]}}, "identifier.a.range", "min <= max"),
        ({"a": {"type": "IntHandler", "required": True, "range": [1]}}, "identifier.a.range", "two whole numbers"),
        (
            {"a": {"type": "DateHandler", "required": True, "canonical_format": "%d.%m."}},
            "identifier.a.canonical_format",
            "%Y-%m-%d",
        ),
        ({"point": TEXT}, "identifier.point", "reserved"),
        (
            {"point_cloud": {"type": "PointCloudHandler", "required": True, "max_points": 10_001}},
            "identifier.point_cloud.max_points",
            "10000",
        ),
        (
            {"point_cloud": {"type": "PointCloudHandler", "required": True, "max_points": 0}},
            "identifier.point_cloud.max_points",
            "from 1 to 10000",
        ),
        ({"a": POLYGON_FIELD}, "identifier.a", "must be named polygon"),
        ({"polygon": TEXT}, "identifier.polygon", "reserved for the PolygonHandler"),
        ({"point_cloud": TEXT}, "identifier.point_cloud", "reserved for the PointCloudHandler"),
    ],
)
def test_problems_of_fields(identifier: object, key: str, words: str) -> None:
    found = problems({"identifier": identifier})
    assert [(where, words in what) for where, what in found] == [(key, True)], found


def test_unknown_field_types_are_answered_with_the_known_ones() -> None:
    ((_, told),) = problems({"identifier": {"a": {"type": "Nope", "required": True}}})
    assert all(name in told for name in FIELD_TYPES)


@pytest.mark.parametrize(
    ("identifier", "key", "words"),
    [
        ({"b": CLOUD_FIELD}, "identifier.b", "must be named point_cloud"),
        ({"point_cloud": CLOUD_FIELD, "polygon": POLYGON_FIELD}, "identifier.polygon", "together"),
    ],
)
def test_problems_of_point_clouds(identifier: dict[str, Any], key: str, words: str) -> None:
    found = problems({"topic": {"base": "m", "key_order": ["a"]}, "identifier": {"a": TEXT, **identifier}})
    assert [(where, words in what) for where, what in found] == [(key, True)], found


@pytest.mark.parametrize(
    ("members", "key", "words"),
    [
        ({"topic": {"base": "m", "key_order": ["b"]}}, "topic.key_order", "'b' is not declared"),
        ({"topic": {"base": "m", "key_order": ["a", "a"]}}, "topic.key_order", "listed twice"),
        ({"topic": {"base": "m", "key_order": []}}, "topic.key_order", "names no field at least one of a"),
        ({"topic": {"key_order": ["a"]}}, "topic.base", "must be present text"),
        ({"topic": {"base": "m"}}, "topic.key_order", "must be present a list of texts"),
        ({"topic": "m"}, "topic", "a mapping with base, key_order"),
        ({"topic": {"base": "m", "key_order": ["a", []]}}, "topic.key_order[1]", "a list of texts"),
        ({"payload": {}}, "payload.required", "must be present true or false"),
        ({"payload": {"required": "maybe"}}, "payload.required", "'maybe' is neither true nor false"),
        ({"payload": {"required": True, "type": "x"}}, "payload.type", "unknown key required"),
        ({"max_historical_notifications": 0}, "max_historical_notifications", "1 or more"),
        ({"max_historical_notifications": "many"}, "max_historical_notifications", "'many' is not a whole number"),
        ({"max_historical_notifications": 10**26}, "max_historical_notifications", "64 bits"),
    ],
)
def test_problems_of_the_rest(members: dict[str, Any], key: str, words: str) -> None:
    found = problems({"identifier": {"a": TEXT}, **members})
    assert [where for where, _ in found] == [key]
    assert words in found[0][1].lower() or words in found[0][1]


def test_a_point_cloud_is_no_part_of_the_topic() -> None:
    cloud = {"type": "PointCloudHandler", "required": True}
    found = problems({"identifier": {"point_cloud": cloud}, "topic": {"base": "c", "key_order": ["point_cloud"]}})
    assert [where for where, _ in found] == ["topic.key_order"]


def test_all_problems_are_told_at_once() -> None:
    found = problems(
        {
            "identifier": {"a": {**TEXT, "max_length": 0}, "b": {"type": "Nope"}},
            "topic": {"base": "m", "key_order": ["a", "c"]},
            "payload": 5,
        }
    )
    assert {where for where, _ in found} == {
        "identifier.a.max_length",
        "identifier.b.type",
        "identifier.b.required",
        "topic.key_order",
        "payload",
    }


@pytest.mark.parametrize(
    ("field", "members"),
    [
        (
            {"type": "IntHandler", "required": "perhaps", "range": [5], "foo": 1, "max_length": 3},
            ["required", "range", "foo", "max_length"],
        ),
        ({"type": "IntHandler", "required": True, "foo": 1, "range": [5]}, ["range", "foo"]),
        ({"type": "IntHandler", "foo": 1, "range": [5, 1]}, ["required", "foo", "range"]),
        ({"type": "EnumHandler"}, ["required", "values"]),
        ({"required": "perhaps", "description": {}}, ["type", "required", "description"]),
    ],
)
def test_all_problems_of_one_field_are_told_at_once(field: dict[str, Any], members: list[str]) -> None:
    found = problems({"identifier": {"x": field}})
    assert [where for where, _ in found] == [f"identifier.x.{member}" for member in members]


def test_all_problems_of_one_section_are_told_at_once() -> None:
    found = problems({"identifier": {"a": TEXT}, "payload": {"requird": 1}, "topic": {"bases": "m"}})
    assert [where for where, _ in found] == ["topic.base", "topic.key_order", "payload.required", "payload.requird"]


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
        draft.topic == "extreme_event.north.1200.3.42%2E5."
        "[[52%2E5,13%2E4],[52%2E6,13%2E5],[52%2E5,13%2E6],[52%2E4,13%2E5],[52%2E5,13%2E4]]"
    )
    assert json.loads(draft.identifier) == {
        **NORTH,
        "region": "north",
        "run_time": "1200",
        "severity": "3",
        "anomaly": "42.5",
        "polygon": [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]],
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
    with pytest.raises(InvalidRequest, match=r"'expver' is missing for notify operation; send it empty .* default '1'"):
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


@pytest.mark.parametrize(
    "polygon",
    [
        " 0,0, 0,2, 2,2, 2,0, 0.0,0 ",
        [[0, 0], [0, 2], [2, 2], [2.0, 0], [0, 0]],
        "[[0,0], [0,2], [2,2], [2,0], [0,0]]",
    ],
)
def test_polygons_in_every_form_are_stored_as_arrays_of_floats(polygon: object) -> None:
    draft = POLYGON.check({"date": "20250101", "time": "12", "polygon": polygon}, 1)
    assert b'"polygon":[[0.0,0.0],[0.0,2.0],[2.0,2.0],[2.0,0.0],[0.0,0.0]]' in draft.identifier
    assert draft.box == Box(0, 0, 2, 2)
    identifier = {"polygon": polygon}
    assert POLYGON.compile(identifier, "watch").area == POLYGON.compile({"polygon": SQUARE}, "watch").area


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_places_are_known_only_where_there_is_geometry(operation: Operation) -> None:
    plain = event_type("plain", {"a": {"type": "StringHandler", "required": True}}, order=["a"])
    for name, value in (("polygon", SQUARE), ("point", "1,1")):
        with pytest.raises(
            InvalidRequest, match=f"^Unknown field '{name}' provided for {operation} operation"
        ) as found:
            plain.compile({name: value}, operation, read_point({name: value}))
        assert found.value.field == name
    with pytest.raises(InvalidRequest, match=r"identifier\.point_cloud is only supported for notify operations"):
        plain.compile({"point_cloud": [[1, 1]]}, operation)


def test_generic_events_take_no_arrays() -> None:
    for name, value in (("polygon", [[0, 0]]), ("point", [1, 1]), ("a", [1])):
        with pytest.raises(InvalidRequest, match=f"Field '{name}' must be a scalar value"):
            GenericType("news").compile({name: value}, "watch", read_point({name: value}))


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


DRAFT = POLYGON.check({"date": "20250101", "time": "12", "polygon": SQUARE}, {"a": 1})


@pytest.mark.parametrize(
    "value",
    [
        EXTREME,
        CLOUD,
        GenericType("news"),
        Catalogue({"probe": PROBE}),
        DRAFT,
        stored(DRAFT, 7),
        stored(DRAFT).box,
        POLYGON.compile({"polygon": SQUARE, "time": "12"}, "watch"),
        POLYGON.compile({"point": "1,1"}, "watch", Point(1, 1)),
        PROBE.compile({"num": {"in": [1, 2]}, "kind": {"eq": "red"}, "txt": "x"}, "replay"),
        GenericType("news").compile({"a": "*", "b": 5}, "watch"),
        Span(from_sequence=5, to_time=7),
    ],
)
def test_values_pickle(value: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert again == value
        assert type(again) is type(value)


def test_filters_mean_the_same_afterwards_and_stay_keys() -> None:
    wanted = POLYGON.compile({"polygon": SQUARE, "time": "12"}, "watch")
    assert wanted.matches(stored(DRAFT))
    again = pickle.loads(pickle.dumps(wanted))
    assert again.matches(stored(DRAFT))
    assert {wanted: 1}[again] == 1
