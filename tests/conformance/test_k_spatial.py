"""K. Spatial filtering."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.expectations import INR, REFUSALS, assert_refused, payloads
from tests.conformance.samples import POLYGON, SEED_A, SEED_B, SQ, P, Q, but, pairs, without
from tests.harness import Client
from tests.harness.client import body

READING = ("watch", "replay")


def publish(api: Client, **polygons: Any) -> None:
    """Publish a notification per polygon, with its name as the payload."""
    for name, polygon in polygons.items():
        api.publish("test_polygon", but(POLYGON, polygon=polygon), name)


def found(api: Client, **filters: Any) -> list[str]:
    return payloads(api.replay("test_polygon", filters))


def test_case_153_polygon_comes_back(api: Client) -> None:
    publish(api, p=P)
    (event,) = api.replay("test_polygon", {"polygon": P}).notifications
    assert event["data"]["identifier"] == {"date": "20250706", "time": "1200", "polygon": pairs(P)}


def test_case_154_live(api: Client) -> None:
    with api.watch("test_polygon", {"polygon": P}) as stream:
        assert stream.next().data["topic"] == "polygon.*.*"
        publish(api, q=Q, p=P)
        event = stream.notification()
    assert event["data"] == {"identifier": but(POLYGON, polygon=pairs(P)), "payload": "p"}


def test_case_155_point(api: Client) -> None:
    publish(api, p=P)
    assert found(api, point="52.55,13.5") == ["p"]
    assert found(api, point="(52.55, 13.5)") == ["p"]
    assert found(api, point=" 52.5 , 13.5 ") == ["p"]
    assert found(api, point="0,0") == []


def test_case_156_point_picks_the_polygon_around_it(api: Client) -> None:
    publish(api, p=P, q=Q)
    assert found(api, point="52.55,13.5") == ["p"]
    assert found(api, point="10.1,10.1") == ["q"]


def test_case_156_live(api: Client) -> None:
    with api.watch("test_polygon", {"point": "10.1,10.1"}) as stream:
        stream.until("connection_established")
        publish(api, p=P, q=Q)
        assert stream.notification()["data"]["payload"] == "q"


@pytest.mark.parametrize("operation", READING)
@pytest.mark.parametrize("event_type", ["test_polygon", "mars"])
def test_case_157_polygon_and_point(api: Client, operation: str, event_type: str) -> None:
    request = body(event_type, {"polygon": P, "point": "52.55,13.5"}, from_id="1")
    fragment = "Cannot specify both identifier.polygon and identifier.point"
    assert_refused(api.answer(operation, request), REFUSALS[operation], fragment)


BAD_POINTS = [
    *["invalid-point", "52.55", "1,2,3", "91,0", "-90.5,0", "0,181", "0,-180.5", "", " ", "(1,2", "1,2)", "a,b"],
    *["NaN,0", "1,inf", "1;2", "1,", ",", None, {}, 5, True],
    *[[], [1], [1, 2, 3], ["1", "2"], [91, 0], [0, 181], [True, False], [[1, 2]], [None, 1]],
]


@pytest.mark.parametrize("point", BAD_POINTS, ids=json.dumps)
@pytest.mark.parametrize("operation", READING)
def test_case_158_bad_point(api: Client, operation: str, point: Any) -> None:
    request = body("test_polygon", {"point": point}, from_id="1")
    assert_refused(api.answer(operation, request), REFUSALS[operation], "point")


@pytest.mark.parametrize("point", ["90,180", "-90,-180", [1, 2], [52.55, 13.5], "1e1,+2."], ids=json.dumps)
@pytest.mark.parametrize("operation", READING)
def test_case_158_good_point(api: Client, operation: str, point: Any) -> None:
    assert api.answer(operation, body("test_polygon", {"point": point}, from_id="1")).status == 200


@pytest.mark.parametrize("operation", READING)
def test_case_159_required_polygon(api: Client, operation: str) -> None:
    request = body("test_polygon", {"time": "1200"}, from_id="1")
    assert_refused(api.answer(operation, request), REFUSALS[operation], "Required field 'polygon'")


def test_case_159_optional_polygon(api: Client) -> None:
    for name, polygon in {"p": P, "q": Q}.items():
        api.publish("test_polygon_optional", but(POLYGON, polygon=polygon), name)
    assert payloads(api.replay("test_polygon_optional", {"time": "1200"})) == ["p", "q"]
    assert payloads(api.replay("test_polygon_optional", {"time": "1200", "polygon": Q})) == ["q"]
    assert payloads(api.replay("test_polygon_optional", {"time": "1300", "polygon": Q})) == []


def test_case_160_point_stands_for_the_polygon(api: Client) -> None:
    publish(api, p=P)
    assert found(api, point="52.5,13.5") == ["p"]
    assert found(api, point="52.5,13.5", time="12") == ["p"]
    assert found(api, point="52.5,13.5", time="13") == []


@pytest.mark.parametrize(
    ("point", "inside"),
    [("1,1", True), ("0,1", False), ("0,0", False), ("2,2", False), ("1,2.0000001", False), ("1,1.9999999", True)],
)
def test_case_161_interior_only(api: Client, point: str, inside: bool) -> None:
    publish(api, sq=SQ)
    assert found(api, point=point) == (["sq"] if inside else [])


@pytest.mark.parametrize(
    ("polygon", "touches"),
    [
        ("(2,0,3,0,3,1,2,1,2,0)", True),
        ("(2,2,3,2,3,3,2,3,2,2)", True),
        ("(3,3,4,3,4,4,3,4,3,3)", False),
        ("(0.5,0.5,0.5,1,1,1,0.5,0.5)", True),
        ("(-1,-1,-1,5,5,5,5,-1,-1,-1)", True),
        (SQ, True),
        ("(1,-1,1,3,1,3,1,-1)", True),  # a line across
        ("(1,1,1,1,1,1,1,1)", True),  # a single place
        ("(2.0000001,0,3,0,3,1,2.0000001,1,2.0000001,0)", False),
    ],
    ids=["edge", "corner", "apart", "inside", "around", "equal", "line", "place", "near"],
)
def test_case_162_intersection(api: Client, polygon: str, touches: bool) -> None:
    publish(api, sq=SQ)
    assert found(api, polygon=polygon) == (["sq"] if touches else [])


@pytest.mark.parametrize(
    ("polygon", "touches"),
    [
        (P, True),
        ("(52.6,13.5,52.7,13.4,52.7,13.6,52.6,13.5)", True),
        ("(52.52,13.45,52.62,13.55,52.52,13.65,52.42,13.55,52.52,13.45)", True),
        (Q, False),
        ("(52.58,13.40,52.60,13.40,52.60,13.42,52.58,13.42,52.58,13.40)", False),
    ],
    ids=["itself", "vertex", "overlap", "apart", "in the box only"],
)
def test_case_163_diamond(api: Client, polygon: str, touches: bool) -> None:
    publish(api, p=P)
    assert found(api, polygon=polygon) == (["p"] if touches else [])


@pytest.mark.parametrize(
    ("point", "inside"),
    [("52.55,13.5", True), ("52.5,13.5", True), ("52.6,13.5", False), ("52.59,13.41", False), ("0,0", False)],
)
def test_case_163_points_of_the_diamond(api: Client, point: str, inside: bool) -> None:
    publish(api, p=P)
    assert found(api, point=point) == (["p"] if inside else [])


@pytest.mark.parametrize(
    ("point", "inside"),
    [("1,0.5", True), ("1,1.5", True), ("0.5,1", False), ("1.5,1", False), ("1,1", False)],
)
def test_case_164_bow_tie(api: Client, point: str, inside: bool) -> None:
    publish(api, bow="(0,0,2,2,0,2,2,0,0,0)")
    assert found(api, point=point) == (["bow"] if inside else [])


def test_case_164_twice_wound_square(api: Client) -> None:
    publish(api, twice="(0,0,0,4,4,4,4,0,0,0,0,4,4,4,4,0,0,0)")
    assert found(api, point="2,2") == ["twice"]
    assert found(api, point="5,2") == []


BAD_POLYGONS = {
    "missing )": "(1,2,3,4,5,6,1,2",
    "missing (": "1,2,3,4,5,6,1,2)",
    "inner parentheses": "(1,2),3,4,5,6,1,2)",
    "three pairs": "(0,0,1,0,0,0)",
    "unclosed": "(0,0,0,1,1,1,1,0)",
    "odd count": "(1,2,3,4,5,6,7,1,2)",
    "words": "a,b",
    "words among numbers": "(a,2,3,4,5,6,a,2)",
    "empty item": "1,2,,4,5,6,1,2",
    "lat 91": "(91,0,0,1,1,1,91,0)",
    "lat -90.5": "(-90.5,0,0,1,1,1,-90.5,0)",
    "lon 181": "(0,181,0,1,1,1,0,181)",
    "NaN": "(NaN,0,0,1,1,1,NaN,0)",
    "inf": "(0,inf,0,1,1,1,0,inf)",
    "only parentheses": "()",
    "nothing": "",
    "underscore": "(1_0,2,3,4,5,6,1_0,2)",
}


@pytest.mark.parametrize("polygon", BAD_POLYGONS.values(), ids=BAD_POLYGONS)
def test_case_165_bad_polygon(api: Client, polygon: str) -> None:
    response = api.notify("test_polygon", but(POLYGON, polygon=polygon), "x")
    refusal = assert_refused(response, INR, "field 'polygon'", "must be a valid polygon")
    assert "Invalid longitude" not in refusal["message"]


def test_case_165_which_parenthesis(api: Client) -> None:
    for name, words in {"missing )": "missing the closing", "missing (": "missing the opening"}.items():
        assert_refused(api.notify("test_polygon", but(POLYGON, polygon=BAD_POLYGONS[name]), "x"), INR, words)


def test_case_166_limits(api: Client) -> None:
    publish(api, edge="(90,-180,90,180,-90,180,-90,-180,90,-180)")
    assert found(api, point="0,0") == ["edge"]


@pytest.mark.parametrize(
    "polygon",
    ["0,0,0,2,2,2,2,0,0,0", " ( 0 , 0 ,0,2, 2,2,2,0,0,0 ) ", "(0.0,00,0,2.0,2,2,+2,0,-0,0e5)", "(0,0,0,1e0,1,1,0,0)"],
)
def test_case_167_text_becomes_an_array(api: Client, polygon: str) -> None:
    publish(api, kept=polygon)
    (event,) = api.replay("test_polygon", {"polygon": polygon}).notifications
    assert event["data"]["identifier"]["polygon"] == pairs(polygon)


@pytest.mark.parametrize("polygon", BAD_POLYGONS.values(), ids=BAD_POLYGONS)
@pytest.mark.parametrize("operation", READING)
def test_case_168_bad_polygon_on_reading(api: Client, operation: str, polygon: str) -> None:
    response = api.answer(operation, body("test_polygon", {"polygon": polygon}, from_id="1"))
    assert_refused(response, REFUSALS[operation], "field 'polygon'", "must be a valid polygon")


@pytest.mark.parametrize("operation", READING)
def test_case_169_no_geometry(api: Client, operation: str) -> None:
    for name, value in (("point", "1,1"), ("polygon", SQ)):
        response = api.answer(operation, body("mars", {"class": "od", name: value}, from_id="1"))
        words = f"Unknown field '{name}' provided for {operation} operation"
        assert_refused(response, REFUSALS[operation], words)


GIVEN = {"region": {"in": ["north", "south"]}, "run_time": "1200", "severity": {"gte": 1}}


def test_case_170_polygon_in_key_order(api: Client) -> None:
    """A polygon never routes on reading, whether the topic has a place for it or not."""
    api.publish("extreme_event", SEED_A, "a")
    api.publish("extreme_event", SEED_B, "b")
    overlapping = "(52.52,13.45,52.62,13.55,52.52,13.65,52.42,13.55,52.52,13.45)"
    stream = api.replay("extreme_event", {**GIVEN, "polygon": overlapping})
    assert payloads(stream) == ["a"]
    assert stream.frames[0].data["topic"] == "extreme_event.*.1200.*.*.*"
    assert payloads(api.replay("extreme_event", {**GIVEN, "polygon": P})) == ["a"]
    assert payloads(api.replay("extreme_event", {**GIVEN, "point": "52.55,13.50"})) == ["a"]
    both = api.replay("extreme_event", GIVEN)
    assert payloads(both) == ["a", "b"]
    assert [event["data"]["identifier"] for event in both.notifications] == [
        but(SEED_A, polygon=pairs(P)),
        but(SEED_B, polygon=pairs(Q)),
    ]


def test_case_170_live(api: Client) -> None:
    with api.watch("extreme_event", {**GIVEN, "polygon": "(10.1,10.1,10.1,11,11,11,10.1,10.1)"}) as stream:
        stream.until("connection_established")
        api.publish("extreme_event", SEED_A, "a")
        api.publish("extreme_event", SEED_B, "b")
        assert stream.notification()["data"]["payload"] == "b"


def test_latitude_comes_first(api: Client) -> None:
    publish(api, wide="(0,0,0,100,10,100,10,0,0,0)")
    assert found(api, point="5,90") == ["wide"]
    assert found(api, point="50,5") == []


def test_optional_polygon_is_needed_on_notify(api: Client) -> None:
    response = api.notify("test_polygon_optional", without(POLYGON, "polygon"), "x")
    assert_refused(response, INR, "Required field 'polygon'")
