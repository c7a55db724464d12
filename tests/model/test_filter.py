"""Requests to watch and replay: what they compile to, and what passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.model.event_type import EventType, GenericType, read_point
from aviso_server.model.fields import Constraint, Kind
from aviso_server.model.filter import LONGEST_FILTER, Filter
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Notification
from aviso_server.model.shapes import Point, Polygon
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
    """Other servers may have stored a notification without its polygon."""
    identifier, payload = compact({"date": "20250101", "time": "1200"}), compact({"spatial_geometry": geometry})
    notification = Notification(1, 10**18, "polygon.20250101.1200", identifier, payload)
    assert wants(POLYGON, {"point": "1,1"}).matches(notification) is inside
    assert not wants(POLYGON, {"point": "3,3"}).matches(notification)
    assert not wants(POLYGON, {"polygon": SQUARE}).matches(notification)


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


# As JSON -------------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=6) | st.sampled_from(["a", "A", "ä", 'x"y', "back\\slash", "\u212a", "1e400", ""])
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WHOLES = st.integers(-(2**63), 2**63 - 1)


def constraints_of(kind: Kind, operand: st.SearchStrategy[Any]) -> st.SearchStrategy[Constraint]:
    return st.one_of(
        st.builds(Constraint, st.just(kind), st.sampled_from(["eq", "gt", "gte", "lt", "lte"]), st.tuples(operand)),
        st.builds(Constraint, st.just(kind), st.just("in"), st.lists(operand, min_size=1, max_size=4).map(tuple)),
        st.builds(Constraint, st.just(kind), st.just("between"), st.tuples(operand, operand)),
    )


PLACES = st.tuples(st.floats(-90, 90), st.floats(-180, 180))
FILTERS = st.builds(
    Filter,
    WORDS,
    WORDS,
    WORDS,
    st.lists(st.tuples(WORDS, WORDS), max_size=3).map(tuple),
    st.lists(
        st.tuples(
            WORDS, constraints_of("integer", WHOLES) | constraints_of("number", FLOATS) | constraints_of("text", WORDS)
        ),
        max_size=3,
    ).map(tuple),
    st.none()
    | st.builds(lambda pair: Point(*pair), PLACES)
    | st.lists(PLACES, min_size=1, max_size=6).map(Polygon.closed),
    st.booleans(),
    st.booleans(),
)


@given(FILTERS)
def test_a_filter_comes_back_from_json_as_it_was(wanted: Filter) -> None:
    again = Filter.from_json(wanted.to_json())
    assert again == wanted
    assert repr(again) == repr(wanted), "types are those that they were, and so is the sign of zero"
    assert Filter.from_json(wanted.to_json().decode()) == wanted


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "step": st.integers(0, 9) | st.fixed_dictionaries({"gte": st.integers(0, 9)}),
            "name": WORDS.filter(bool),
        },
    ),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "ä", 'x"y'])), max_size=8),
)
def test_what_came_through_json_matches_the_same(identifier: dict[str, Any], rows: list[tuple[int, str]]) -> None:
    kind = event_type("probe", {"step": "IntHandler", "name": "StringHandler"}, "probe", ["step"])
    try:
        wanted = kind.compile(identifier, "replay", lenient=True)
    except InvalidRequest:
        return
    again = Filter.from_json(wanted.to_json())
    for sequence, (step, name) in enumerate(rows, start=1):
        draft = kind.check({"step": step, "name": name})
        notification = Notification(sequence, sequence, draft.topic, draft.identifier, draft.payload)
        assert again.matches(notification) == wanted.matches(notification)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_json_cannot_say_is_not_written(number: float) -> None:
    wanted = Filter("a", "a", "a", tests=(("x", Constraint("number", "gt", (number,))),))
    with pytest.raises(ValueError, match="not finite"):
        wanted.to_json()


BARE = {"event_type": "a", "stream": "a", "topic": "a"}


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        (b"no JSON", "malformed"),
        (b"[]", "Expected `object`"),
        (compact({"event_type": "a"}), "missing required field `stream`"),
        (compact({**BARE, "tests": [["x", {"kind": "word", "operator": "eq", "operands": ["a"]}]]}), "Invalid enum"),
        (compact({**BARE, "tests": [["x", {"kind": "text", "operator": "like", "operands": ["a"]}]]}), "'like' of 1"),
        (compact({**BARE, "tests": [["x", {"kind": "text", "operator": "eq", "operands": []}]]}), "'eq' of 0 values"),
        (compact({**BARE, "tests": [["x", {"kind": "text", "operator": "eq", "operands": [5]}]]}), "not of the kind"),
        (compact({**BARE, "tests": [["x", {"kind": "integer", "operator": "eq", "operands": [5.0]}]]}), "'integer'"),
        (compact({**BARE, "tests": [["x", {"kind": "number", "operator": "between", "operands": [5.0]}]]}), "two"),
        (compact({**BARE, "area": {"lats": [1.0], "lons": [], "box": [1, 1, 1, 1]}}), "not a polygon"),
        (b" " * (LONGEST_FILTER + 1), "too long"),
    ],
)
def test_what_is_no_filter_is_refused(given_: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Filter.from_json(given_)
