"""Requests to watch and replay: what they compile to, and what passes."""

from __future__ import annotations

from typing import Any

import pytest

from aviso_server.errors import InvalidRequest
from aviso_server.model.filter import Filter
from aviso_server.model.schema import EventType, GenericType, read_point
from tests.model.event_types import CLOUD, EXTREME, POLYGON, PROBE, SQUARE, event_type, stored

DIAMOND = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
NORTH = stored(
    EXTREME.check({"region": "north", "run_time": "1200", "severity": 3, "anomaly": 42.5, "polygon": DIAMOND})
)
CORE = {"region": "north", "run_time": "1200", "severity": 3}


def wants(event_type: EventType | GenericType, identifier: dict[str, Any]) -> Filter:
    return event_type.compile(identifier, "watch", read_point(identifier))


@pytest.mark.parametrize(
    ("more", "passes"),
    [
        ({}, True),
        ({"region": "NORTH"}, True),
        ({"region": {"in": ["South", "north"]}}, True),
        ({"region": "south"}, False),
        ({"run_time": "12:00"}, True),
        ({"severity": {"gte": 3}}, True),
        ({"severity": {"gt": 3}}, False),
        ({"severity": "03"}, True),
        ({"anomaly": "42.50"}, True),
        ({"anomaly": {"eq": 42.5}}, True),
        ({"anomaly": {"eq": 42.4999999}}, False),
        ({"anomaly": {"between": [40.0, 50.0]}}, True),
        ({"anomaly": {"gt": 40}, "severity": {"lt": 3}}, False),
        ({"polygon": DIAMOND}, True),
        ({"polygon": "(52.52,13.45,52.62,13.55,52.52,13.65,52.42,13.55,52.52,13.45)"}, True),
        ({"polygon": "(52.6,13.5,52.7,13.4,52.7,13.6,52.6,13.5)"}, True),
        ({"polygon": "(52.58,13.40,52.60,13.40,52.60,13.42,52.58,13.42,52.58,13.40)"}, False),
        ({"polygon": "(10.0,10.0,10.2,10.0,10.2,10.2,10.0,10.2,10.0,10.0)"}, False),
        ({"polygon": [[52.6, 13.5], [52.7, 13.4], [52.7, 13.6], [52.6, 13.5]]}, True),
        ({"point": "52.55,13.5"}, True),
        ({"point": "(52.5, 13.5)"}, True),
        ({"point": [52.55, 13.5]}, True),
        ({"point": "52.6,13.5"}, False),
        ({"point": "52.59,13.41"}, False),
        ({"point": "0,0"}, False),
    ],
)
def test_what_passes(more: dict[str, Any], passes: bool) -> None:
    assert wants(EXTREME, {**CORE, **more}).matches(NORTH) is passes


def test_omitted_and_constrained_fields_and_areas_show_as_stars() -> None:
    assert wants(EXTREME, CORE).topic == "extreme_event.north.1200.3.*.*"
    assert wants(EXTREME, {**CORE, "severity": {"gt": 3}, "polygon": DIAMOND}).topic == "extreme_event.north.1200.*.*.*"
    assert wants(EXTREME, {**CORE, "anomaly": "42.50"}).topic == "extreme_event.north.1200.3.42.5.*"
    assert wants(POLYGON, {"time": "12", "polygon": SQUARE}).topic == "polygon.*.1200"


def test_a_filter_without_conditions_is_open() -> None:
    assert wants(PROBE, {}).is_open
    assert wants(PROBE, {"txt": "*", "exp": "*"}).is_open
    assert not wants(PROBE, {"txt": "a"}).is_open


@pytest.mark.parametrize("missing", list(CORE))
def test_required_fields_must_be_given(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{missing}' is missing for replay") as refusal:
        EXTREME.compile({key: value for key, value in CORE.items() if key != missing}, "replay")
    assert refusal.value.field == missing


def test_a_point_stands_in_for_a_required_polygon() -> None:
    assert wants(POLYGON, {"point": "1,1"}).area == (1, 1)
    with pytest.raises(InvalidRequest, match="'polygon' is missing"):
        wants(POLYGON, {"time": "12"})


@pytest.mark.parametrize("event_type", [EXTREME, POLYGON, PROBE, CLOUD])
def test_unknown_fields_never_widen_a_filter(event_type: EventType) -> None:
    with pytest.raises(InvalidRequest, match="Unknown field 'bogus' provided for watch") as refusal:
        wants(event_type, {"bogus": "1"})
    assert refusal.value.field == "bogus"


@pytest.mark.parametrize("value", [None, [3], "", "x", 8])
def test_bad_values_name_the_field(value: object) -> None:
    with pytest.raises(InvalidRequest, match="Field 'severity'"):
        wants(EXTREME, {**CORE, "severity": value})


@pytest.mark.parametrize(
    "value", [None, {"eq": "1,2"}, "", "52.55", "1,2,3", "(1,2", "91,0", "0,181", [1], [1, 2, 3], ["1", "2"], True]
)
@pytest.mark.parametrize("event_type", [EXTREME, PROBE])
def test_bad_points_are_refused_whatever_the_event_type(event_type: EventType, value: object) -> None:
    with pytest.raises(InvalidRequest, match="ield 'point'"):
        wants(event_type, {**(CORE if event_type is EXTREME else {}), "point": value})


def test_polygon_and_point_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match=r"both identifier\.polygon and identifier\.point"):
        wants(PROBE, {"polygon": 5, "point": None})


@pytest.mark.parametrize(
    ("identifier", "passes"),
    [
        ({"off": "x"}, True),
        ({"off": "y"}, False),
        ({"offnum": {"gte": 5}}, True),
        ({"offnum": {"gt": 5}}, False),
        ({"offnum": "05"}, True),
        ({"off": "*"}, True),
    ],
)
def test_fields_outside_the_topic_filter_too(identifier: dict[str, Any], passes: bool) -> None:
    probe = stored(PROBE.check({"txt": "a", "num": 1, "exp": "1", "kind": "red", "off": "x", "offnum": 5}))
    assert wants(PROBE, identifier).matches(probe) is passes


@pytest.mark.parametrize(
    ("field", "taken"), [("txt", True), ("exp", True), ("kind", True), ("off", True), ("num", False)]
)
def test_a_star_asks_for_anything_where_text_is_free(field: str, taken: bool) -> None:
    if taken:
        assert wants(PROBE, {field: "*"}).is_open
    else:
        with pytest.raises(InvalidRequest):
            wants(PROBE, {field: "*"})


def test_stars_inside_a_text_are_ordinary() -> None:
    probe = {"num": 1, "exp": "1", "kind": "red", "off": "x", "offnum": 5}
    assert wants(PROBE, {"txt": "a*"}).matches(stored(PROBE.check({**probe, "txt": "a*"})))
    assert not wants(PROBE, {"txt": "a*"}).matches(stored(PROBE.check({**probe, "txt": "ab"})))
    assert wants(PROBE, {"txt": ">"}).topic == "probe.>.*.*.*"


def test_a_published_star_passes_only_where_anything_is_asked_for() -> None:
    star = stored(PROBE.check({"txt": "*", "num": 1, "exp": "1", "kind": "*", "off": "x", "offnum": 5}))
    assert wants(PROBE, {"txt": "*"}).matches(star)
    assert wants(PROBE, {}).matches(star)
    assert not wants(PROBE, {"txt": "a"}).matches(star)
    assert not wants(PROBE, {"kind": {"in": ["red", "*"]}}).matches(star)


def test_minus_zero_is_zero_to_a_constraint_but_not_to_text() -> None:
    flux = event_type("flux", {"v": "FloatHandler"}, order=["v"])
    minus = stored(flux.check({"v": "-0.0"}))
    assert wants(flux, {"v": {"eq": 0}}).matches(minus)
    assert not wants(flux, {"v": 0}).matches(minus)


def test_point_clouds_are_filtered_by_polygon_alone() -> None:
    def cloud(*points: list[float]) -> Any:
        return stored(CLOUD.check({"kind": "hail", "point_cloud": list(points)}))

    square = wants(CLOUD, {"polygon": SQUARE})
    assert square.matches(cloud([1, 1], [5, 5]))
    assert square.matches(cloud([0, 1]))
    assert not square.matches(cloud([3, 3], [-1, -1]))
    with pytest.raises(InvalidRequest, match="'point_cloud' is missing"):
        wants(CLOUD, {})
    with pytest.raises(InvalidRequest, match=r"identifier\.point_cloud is only supported for notify"):
        wants(CLOUD, {"polygon": SQUARE, "point_cloud": [[1, 1]]})
    with pytest.raises(InvalidRequest, match=r"identifier\.point is not supported for point-cloud schemas"):
        wants(CLOUD, {"point": "1,1"})


def test_an_optional_point_cloud_may_go_without_an_area() -> None:
    optional = event_type("c", {"kind": "StringHandler", "point_cloud": "PointCloudHandler"}, order=["kind"])
    assert wants(optional, {"kind": "hail"}).area is None


@pytest.mark.parametrize(
    ("geometry", "inside"),
    [
        ({"type": "Polygon", "coordinates": [[[0, 0], [0, 2], [2, 2], [2, 0], [0, 0]]]}, True),
        (SQUARE, True),
        ({"type": "Polygon", "coordinates": [[[0, 0], [0, 2]]]}, False),
        ("nonsense", False),
    ],
)
def test_the_geometry_of_a_payload_serves_points_only(geometry: object, inside: bool) -> None:
    plain = event_type("plain", {"a": "StringHandler"}, order=["a"])
    notification = stored(plain.check({"a": "x"}, {"spatial_geometry": geometry}))
    assert wants(plain, {"point": "1,1"}).matches(notification) is inside
    assert not wants(plain, {"point": "3,3"}).matches(notification)
    assert not wants(plain, {"polygon": SQUARE}).matches(notification)


def test_generic_events_are_matched_by_their_tokens() -> None:
    news = GenericType("news")
    event = stored(news.check({"b": "2", "a": "x.y"}))
    assert wants(news, {"a": "x.y", "b": 2}).matches(event)
    assert wants(news, {"a": "*", "b": "*"}).matches(event)
    assert wants(news, {"k": "x.y", "z": "*"}).matches(event), "keys only say the order"
    assert not wants(news, {"a": "x.y"}).matches(event)
    assert not wants(news, {"a": "x.y", "b": "2", "c": "*"}).matches(event)
    assert not wants(news, {"a": "x", "b": "2"}).matches(event)
    assert not wants(news, {}).matches(event)
    assert wants(news, {}).matches(stored(news.check({})))
    assert wants(news, {"a": "", "b": "*"}).topic == "news..*"
    for value in ({"eq": 1}, None, [1]):
        with pytest.raises(InvalidRequest, match="Field 'a'"):
            wants(news, {"a": value})


def test_generic_events_have_no_place_on_the_map() -> None:
    news = GenericType("news")
    event = stored(news.check({"polygon": SQUARE}))
    assert not wants(news, {"polygon": SQUARE}).matches(event)
    assert not wants(news, {"point": "1,1"}).matches(event)
    assert wants(news, {"area": SQUARE}).matches(event)
